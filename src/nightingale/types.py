"""Values of the public API, which all packages share: sampling parameters, audio and metrics. Free of torch."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nightingale.audio.samples import Samples as Samples
from nightingale.audio.samples import pcm16, wav_bytes
from nightingale.request_options import Sampling as Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Timings and counts of one request, measured by the engine."""

    ttfa_ms: float
    """Time to first audio: from the call to the first audible chunk."""
    total_ms: float
    audio_seconds: float
    tokens: int
    retries: int = 0
    """Text segments that failed a guard and were sampled again."""
    queue_ms: float = 0.0
    """Time that the request waited for a slot."""
    stage_ms: dict[str, float] = field(default_factory=dict)
    """Time by stage: text, prefill, t3 (shared with all requests in the batch), flow, vocoder."""
    chunk_gaps_ms: tuple[float, ...] = ()
    """Times between consecutive chunks: all of them in order, or a random sample if there are more than 512."""
    chunk_gaps: int = 0
    """The number of gaps."""
    chunk_gap_mean_ms: float = 0.0
    chunk_gap_longest_ms: float = 0.0
    memory_bytes: int = 0
    """KV cache bytes of the longest text segment."""

    @property
    def chunk_gap_p95_ms(self) -> float:
        """The 95th percentile of the gaps, or of their sample if there are more than 512."""
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
class TextWarning:
    """A part of a text that is not spoken, or not as it was marked up."""

    what: str
    """A sentence without its full stop."""
    got: str
    """The part of the text, shortened."""
    at: int
    """Its position in the text, in characters from 0. In a session, in the part that was being segmented."""

    def __str__(self) -> str:
        return f"{self.what}: {self.got} (character {self.at + 1})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechProgress:
    """The progress of a call, which callbacks are given."""

    fraction: float
    """Part of the text that is spoken, from 0 to 1: an estimate before the end, and 1 at the end."""
    audio_seconds: float
    """Audio that was synthesized so far."""
    texts_done: int = 0
    """Texts of `say_many` that are complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWord:
    """A word of the author's text, and when it is said."""

    word: str
    """The word as it is written, with the marks around it: "$5.50," is one word."""
    start_s: float
    end_s: float
    """Both are seconds from the beginning of the audio."""
    start_char: int
    end_char: int
    """Its first character in the text, and the one after its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStart:
    """A text segment whose audio begins."""

    text: str
    """The spoken text, with numbers and symbols written out; empty for a pause alone."""
    pause_samples: int
    """Silence at the end of the segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioChunk:
    """Consecutive samples of a stream."""

    samples: Samples
    sample_rate_hz: int
    begins: SegmentStart | None = None
    """The segment that begins with the first sample; None if the chunk continues a segment."""
    words: tuple[TimedWord, ...] = ()
    """The words that end with this audio, if `timestamps` was asked for; the first may have begun before it."""

    def __repr__(self) -> str:
        return f"<AudioChunk {self.seconds:.2f} s at {self.sample_rate_hz} Hz>"

    def __len__(self) -> int:
        return len(self.samples)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the samples to numpy: `np.asarray(audio)` copies nothing."""
        if copy is None:  # numpy 1 knows no other, and refuses None
            return np.asarray(self.samples, dtype=dtype)
        return np.array(self.samples, dtype=dtype, copy=copy)

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate_hz

    @property
    def duration(self) -> float:
        """The same as `seconds`, by the name that other audio libraries use."""
        return self.seconds

    @property
    def pcm16(self) -> bytes:
        """The samples as little-endian 16-bit integers."""
        return pcm16(self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio(AudioChunk):
    """A whole utterance: the joined chunks of a stream."""

    seed: int
    metrics: Metrics
    warnings: tuple[TextWarning, ...] = ()
    """Parts of the text that were not spoken."""

    def __repr__(self) -> str:
        warnings = f", warnings: {len(self.warnings)}" if self.warnings else ""
        return f"<Audio {self.seconds:.2f} s at {self.sample_rate_hz} Hz, seed {self.seed}{warnings}>"

    def save(self, path: str | Path) -> None:
        """Write a file in the format that the path's suffix names: .wav, .flac, .ogg, .opus, .mp3, .pcm,
        or .m4a, which needs the package av."""
        from nightingale.audio.encoders.recording import save  # late, since few programs save

        save(path, self)

    def play(self) -> None:
        """Play the audio on this machine and return at its end. Raise OutputError if that is not possible."""
        from nightingale.audio.playback import Player  # late, since few programs play

        with Player(self.sample_rate_hz) as player:
            player.feed(self.samples)

    def _repr_html_(self) -> str:
        """Return a player for notebooks, with the audio in it."""
        data = base64.b64encode(wav_bytes(self.samples, self.sample_rate_hz)).decode()
        return f'<audio controls src="data:audio/wav;base64,{data}"></audio>'

    @property
    def sha256(self) -> str:
        """Digest of the float32 samples: equal digests mean equal audio, bit for bit."""
        return hashlib.sha256(np.ascontiguousarray(self.samples, dtype="<f4").tobytes()).hexdigest()
