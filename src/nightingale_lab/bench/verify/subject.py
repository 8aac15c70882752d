"""The subject of the checks: a model in a profile, recorded chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from nightingale.clocks import CLOCKS
from nightingale.types import Audio, Metrics, Samples
from nightingale_lab.bench.verify.baseline import Baseline, measure_baseline

GREEDY_TEMPERATURE = 0.0001
NO_METRICS = Metrics(ttfa_ms=0.0, total_ms=0.0, audio_seconds=0.0, tokens=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedUtterance:
    """One utterance as it arrived."""

    text: str
    seed: int
    samples: Samples
    boundaries: tuple[int, ...]
    """The first sample of each chunk but the first."""
    tokens: int
    expected_samples: int
    """960 for each token, without those the model drops, plus the pauses between its text segments."""
    language: str | None = None

    @property
    def rate_hz(self) -> int:
        return CLOCKS.sample_rate_hz

    @property
    def sha256(self) -> str:
        rate_hz = self.rate_hz
        return Audio(samples=self.samples, sample_rate_hz=rate_hz, seed=self.seed, metrics=NO_METRICS).sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedTwice:
    """The same speech tokens, rendered in blocks and in one piece."""

    stream: Samples
    boundaries: tuple[int, ...]
    at_once: Samples
    """The stream's own mel, vocoded in one piece: the stream must equal it sample by sample."""
    whole: Samples
    """Mel and samples both made in one piece: different numbers, the same speech."""


class Subject(Protocol):
    """The interface of the checks. The tests implement it with planted defects (tests/planted.py)."""

    name: str
    profile: str
    languages: tuple[str, ...]

    def say(self, text: str, *, seed: int, language: str | None = None) -> RecordedUtterance: ...

    def whole(self, text: str, *, seed: int) -> Samples:
        """Return the utterance by `TTS.say`, which must equal the joined stream."""

    def tokens(self, text: str, *, seed: int, temperature: float) -> list[int]: ...

    def render_twice(self, text: str, *, seed: int) -> RenderedTwice: ...

    def text_ids(self, text: str, language: str) -> list[int]: ...

    def baseline(self) -> Baseline: ...

    @property
    def unknown_text_id(self) -> int | None: ...


def joined(chunks: Sequence[Samples]) -> tuple[Samples, tuple[int, ...]]:
    """Return all samples, and where each chunk but the first begins."""
    if not chunks:
        return np.zeros(0, np.float32), ()
    return np.concatenate(chunks), tuple(accumulate(len(chunk) for chunk in chunks[:-1]))


class EngineSubject:
    """A loaded model behind the public API."""

    def __init__(
        self, model: Any, profile: str | None = None, voice: Any = None, device: str = "auto"
    ) -> None:
        """model: a nightingale.engine.load.Model. voice: any argument that `TTS.say` takes."""
        from nightingale.engine.tts import TTS
        from nightingale_lab.reference import open_decoder, voice_of

        self.model = model
        self._voice = voice_of(model, voice)
        self._tts = TTS.over(model, profile, device=device)
        self._decoder = open_decoder(model)
        self.name: str = model.name
        self.profile: str = self._tts.plan.profile.name
        self.languages = self._tts.languages

    def say(self, text: str, *, seed: int, language: str | None = None) -> RecordedUtterance:
        stream = self._tts.stream(text, voice=self._voice, seed=seed, language=language)
        samples, boundaries = joined([chunk.samples for chunk in stream])
        tokens = stream.metrics.tokens
        return RecordedUtterance(
            text=text,
            seed=seed,
            samples=samples,
            boundaries=boundaries,
            tokens=tokens,
            expected_samples=self._expected_samples(text, language, tokens),
            language=language,
        )

    def _expected_samples(self, text: str, language: str | None, tokens: int) -> int:
        from nightingale.engine.requests.segments import MAX_CHARS, segment_text

        defaults, profile = self.model.defaults, self._tts.plan.profile
        segments = segment_text(
            self.model.frontend,
            text,
            language,
            split_chars=defaults.split_chars,
            fill=defaults.fill_segments,
            short_first=profile.short_first_segment and not profile.in_blocks,
            max_ids=defaults.max_text_ids,
            max_chars=MAX_CHARS,
            speed=1.0,
            closing_ms=defaults.closing_pause_ms,
        )
        pauses = [int(segment.pause_samples) for segment in segments]
        dropped = len(pauses) if defaults.drop_last_token else 0
        return CLOCKS.samples_per_token * (tokens - dropped) + sum(pauses)

    def whole(self, text: str, *, seed: int) -> Samples:
        samples: Samples = self._tts.say(text, voice=self._voice, seed=seed).samples
        return samples

    def tokens(self, text: str, *, seed: int, temperature: float | None = None) -> list[int]:
        from nightingale_lab.reference import decode, decoding_of

        decoding = decoding_of(self.model, text, seed=seed, voice=self._voice, temperature=temperature)
        return decode(self._decoder, decoding)

    def render_twice(self, text: str, *, seed: int) -> RenderedTwice:
        from nightingale_lab.reference import mel_of, render_in_blocks, render_synthetic, samples_of

        ids = self.tokens(text, seed=seed)
        if self.model.info.synthetic:
            stream, boundaries = joined(render_synthetic(self.model, ids, seed=seed, block_tokens=16))
            (once,) = render_synthetic(self.model, ids, seed=seed, block_tokens=len(ids) + 1)
            return RenderedTwice(stream=stream, boundaries=boundaries, at_once=once, whole=once)
        mel, chunks = render_in_blocks(self.model, ids, seed=seed, voice=self._voice)
        stream, boundaries = joined([chunk for chunk in chunks if len(chunk)])
        whole = mel_of(self.model, ids, seed=seed, voice=self._voice)
        return RenderedTwice(
            stream=stream,
            boundaries=boundaries,
            at_once=samples_of(self.model, mel, seed=seed),
            whole=samples_of(self.model, whole, seed=seed),
        )

    def baseline(self) -> Baseline:
        return measure_baseline(self._tts, self.model)

    def text_ids(self, text: str, language: str) -> list[int]:
        one_language = len(self.languages) == 1
        return list(self.model.frontend.encode(text, None if one_language else language))

    @property
    def unknown_text_id(self) -> int | None:
        bpe = getattr(self.model.frontend.tokenizer, "_bpe", None)
        found = bpe.token_to_id("[UNK]") if bpe is not None else None
        return None if found is None else int(found)

    def close(self) -> None:
        self._tts.close()
