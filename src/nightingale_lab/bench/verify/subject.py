"""Whoever is examined: a model in a profile, asked to speak, and listened to chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from nightingale.clocks import CLOCKS
from nightingale.types import Audio, AudioChunk, Metrics, Samples

GREEDY_TEMPERATURE = 0.0001


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """One utterance as it arrived."""

    text: str
    seed: int
    samples: Samples
    boundaries: tuple[int, ...]
    """The first sample of each chunk but the first."""
    tokens: int
    expected_samples: int
    """960 for each token, less what the model cuts off, plus the pauses between the pieces of its text."""
    language: str | None = None
    metrics: Metrics | None = None

    @property
    def rate_hz(self) -> int:
        return CLOCKS.sample_rate_hz

    @property
    def sha256(self) -> str:
        nothing = Metrics(ttfa_ms=0.0, total_ms=0.0, audio_seconds=0.0, tokens=0)
        rate = self.rate_hz
        return Audio(samples=self.samples, sample_rate_hz=rate, seed=self.seed, metrics=nothing).sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class BothWays:
    """The same speech tokens, rendered in blocks and in one piece."""

    stream: Samples
    boundaries: tuple[int, ...]
    at_once: Samples
    """The stream's own mel, vocoded in one piece: sample for sample what the stream should be."""
    whole: Samples
    """Mel and sound both made in one piece: other numbers, the same speech."""


class Subject(Protocol):
    """What the checks ask of a speaker. The tests have one of their own, with planted defects."""

    name: str
    profile: str
    languages: tuple[str, ...]

    def say(self, text: str, *, seed: int, language: str | None = None) -> Spoken: ...

    def whole(self, text: str, *, seed: int) -> Samples:
        """The utterance by the other door, `say`, which must give the joined stream."""

    def tokens(self, text: str, *, seed: int, temperature: float) -> list[int]: ...

    def both_ways(self, text: str, *, seed: int) -> BothWays: ...

    def text_ids(self, text: str, language: str) -> list[int]: ...

    @property
    def unknown_text_id(self) -> int | None: ...


def joined(chunks: Sequence[AudioChunk]) -> tuple[Samples, tuple[int, ...]]:
    """All samples, and where each chunk but the first begins."""
    if not chunks:
        return np.zeros(0, np.float32), ()
    ends = list(accumulate(len(chunk.samples) for chunk in chunks))
    return np.concatenate([chunk.samples for chunk in chunks]), tuple(ends[:-1])


class EngineSubject:
    """A loaded model, spoken to as a user would."""

    def __init__(
        self, model: Any, profile: str | None = None, voice: Any = None, device: str = "auto"
    ) -> None:
        """model: nightingale.engine.load.Model. voice: whatever `TTS.say` takes as one."""
        from nightingale.engine.tts import TTS
        from nightingale.engine.voice_lookup import VoiceResolver

        self.model = model
        self._voice = VoiceResolver(model).resolve(voice)
        self._tts = TTS.over(model, profile, device=device)
        self.name: str = model.name
        self.profile: str = profile or model.defaults.profile
        self.languages = self._tts.languages

    def say(self, text: str, *, seed: int, language: str | None = None) -> Spoken:
        stream = self._tts.stream(text, voice=self._voice, seed=seed, language=language)
        chunks = list(stream)
        samples, boundaries = joined(chunks)
        metrics = stream.metrics
        return Spoken(
            text=text,
            seed=seed,
            samples=samples,
            boundaries=boundaries,
            tokens=metrics.tokens,
            expected_samples=self._expected_samples(text, language, metrics.tokens),
            language=language,
            metrics=metrics,
        )

    def _expected_samples(self, text: str, language: str | None, tokens: int) -> int:
        pieces = self._pieces(text, language)
        dropped = len(pieces) if self.model.defaults.drop_last_token else 0
        pauses = sum(int(piece.pause_samples) for piece in pieces)
        return CLOCKS.samples_per_token * (tokens - dropped) + pauses

    def _pieces(self, text: str, language: str | None) -> list[Any]:
        from nightingale.engine.requests.segments import MAX_CHARS, segment_text

        defaults = self.model.defaults
        return list(
            segment_text(
                self.model.frontend,
                text,
                language,
                split_chars=defaults.split_chars,
                fill=defaults.fill_pieces,
                max_ids=defaults.max_text_ids,
                max_chars=MAX_CHARS,
                speed=1.0,
                closing_ms=defaults.closing_pause_ms,
            )
        )

    def whole(self, text: str, *, seed: int) -> Samples:
        return self._tts.say(text, voice=self._voice, seed=seed).samples

    def tokens(self, text: str, *, seed: int, temperature: float) -> list[int]:
        from nightingale.decoding.decoding import speak
        from nightingale.decoding.random import generator

        defaults = self.model.defaults
        drawn = speak(
            self.model.networks.t3,
            self.model.frontend.encode(text, None),
            self._voice,
            defaults=defaults,
            sampling=replace(defaults.sampling, temperature=temperature),
            exaggeration=defaults.exaggeration,
            rng=generator(seed, "tokens"),
        )
        return list(drawn)

    def both_ways(self, text: str, *, seed: int) -> BothWays:
        import torch

        from nightingale.backends.torch.mel_stream import MelStream, audible, prepare_prompt, render_mel
        from nightingale.backends.profiles import BALANCED
        from nightingale.backends.torch.sample_stream import SampleStream, render_samples

        flow, hift = self.model.networks.flow, self.model.networks.hift
        temperature = self.model.defaults.sampling.temperature
        ids = audible(self.tokens(text, seed=seed, temperature=temperature))
        prompt = prepare_prompt(flow, self._voice)
        mel = MelStream(flow, self._voice, seed=seed, streaming=True, prompt=prompt)
        sound = SampleStream(hift, seed=seed, streaming=True)
        mels, pieces, at, size = [], [], 0, BALANCED.first_block_tokens
        while at < len(ids):
            end = at + size
            final = end >= len(ids)
            mels.append(mel.push(ids[at:end], final=final))  # (mel, frames)
            pieces.append(sound.push(mels[-1], final=final))
            at, size = end, min(2 * size, BALANCED.largest_block_tokens)
        rate = CLOCKS.sample_rate_hz
        stream, boundaries = joined(
            [AudioChunk(samples=piece, sample_rate_hz=rate) for piece in pieces if len(piece)]
        )
        return BothWays(
            stream=stream,
            boundaries=boundaries,
            at_once=render_samples(hift, torch.cat(mels, dim=1), seed=seed),
            whole=render_samples(hift, render_mel(flow, ids, self._voice, seed=seed), seed=seed),
        )

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
