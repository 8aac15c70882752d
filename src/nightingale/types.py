"""Values that travel between the rooms. Frozen, and free of torch, so that anyone may hold them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nightingale.audio.samples import Samples as Samples
from nightingale.audio.samples import pcm16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next speech token is drawn. `None` in a request means the model family's own default."""

    temperature: float = 0.8
    top_p: float = 1.0
    min_p: float = 0.05
    top_k: int = 0
    """0 keeps every id."""
    repetition_penalty: float = 1.2
    cfg_weight: float = 0.5
    """Classifier-free guidance; 0 decodes a single row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What one request cost, measured from inside."""

    ttfa_ms: float
    """Time to first audio: from the call to the first audible chunk."""
    total_ms: float
    audio_seconds: float
    tokens: int
    retries: int = 0
    """Pieces of the text that went wrong and were drawn again."""
    queue_ms: float = 0.0
    """How long the request waited for a slot."""
    stage_ms: dict[str, float] = field(default_factory=dict)
    """Time by stage: text, prefill, t3 (shared with whoever was decoded beside it), flow, vocoder."""
    chunk_gaps_ms: tuple[float, ...] = ()
    """Between one chunk and the next: all of them in order, or of more than 512 a fair sample."""
    chunk_gaps: int = 0
    """How many there were."""
    chunk_gap_mean_ms: float = 0.0
    chunk_gap_longest_ms: float = 0.0
    drafted: int = 0
    """Tokens that a draft guessed, where there is one (docs/speculative.md)."""
    accepted: int = 0
    """Of those, the ones T3 would have drawn itself: as many passes of T3 were saved."""
    memory_bytes: int = 0
    """Of T3's memory of keys and values (docs/kv-cache.md), filled by the longest piece of the text."""

    @property
    def chunk_gap_p95_ms(self) -> float:
        """Nineteen in twenty gaps are no longer; of the sample, where there were more than 512."""
        ordered = sorted(self.chunk_gaps_ms)
        return ordered[(95 * len(ordered) - 1) // 100] if ordered else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Speech tokens per second of T3's own time."""
        t3_ms = self.stage_ms.get("prefill", 0.0) + self.stage_ms.get("t3", 0.0)
        return 1000 * self.tokens / t3_ms if t3_ms else 0.0

    @property
    def rtf(self) -> float:
        """Real-time factor: seconds of work per second of audio."""
        return self.total_ms / 1000 / self.audio_seconds if self.audio_seconds else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStart:
    """A piece of the text whose sound begins."""

    text: str
    """As it is spoken, with numbers and signs written out; empty for a silence by itself."""
    pause_samples: int
    """Silence at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioChunk:
    """A run of samples, in order, ready to be heard."""

    samples: Samples
    sample_rate_hz: int
    begins: SegmentStart | None = None
    """The piece that begins with its first sample; None if it goes on with what the chunk before it said."""

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate_hz

    @property
    def pcm16(self) -> bytes:
        """Little-endian 16-bit samples, as players and sockets want them."""
        return pcm16(self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio(AudioChunk):
    """A whole utterance: the joined chunks of a stream."""

    seed: int
    metrics: Metrics

    def save(self, path: str | Path) -> None:
        """Write it in the format that the path's suffix names: .wav, .flac, .ogg, .mp3."""
        from nightingale.audio.encoders.recording import save  # late, since few programs save

        save(path, self)

    @property
    def sha256(self) -> str:
        """Digest of the float32 samples: equal digests mean equal sound, bit for bit."""
        return hashlib.sha256(np.ascontiguousarray(self.samples, dtype="<f4").tobytes()).hexdigest()
