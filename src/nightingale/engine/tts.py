"""The face of the engine: one class, `TTS`.

A model is loaded once and shared; whatever changes belongs to a request. `say` is the joined `stream`: there
is one path from text to sound.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from nightingale.clocks import CLOCKS
from nightingale.engine.acoustic import audible, render_mel
from nightingale.engine.decode import speak
from nightingale.engine.enroll import enroll_file
from nightingale.engine.habits import SILENCE_TOKEN, Habits
from nightingale.engine.load import default_model, load_model
from nightingale.engine.pieces import Piece, cut
from nightingale.engine.randomness import SEED_LIMIT, fresh_seed, generator, nth_seed
from nightingale.engine.vocode import render_samples
from nightingale.errors import ConfigError, VoiceError, VoiceNotFound
from nightingale.values import Audio, AudioChunk, Metrics, Samples, Sampling
from nightingale.voices import library
from nightingale.voices.cache import enrolled
from nightingale.voices.voice import Voice

RANGES = {
    "temperature": (0.0, 5.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "top_k": (0, 1_000_000),
    "repetition_penalty": (0.1, 10.0),
    "cfg_weight": (0.0, 10.0),
    "exaggeration": (0.0, 5.0),
    "seed": (0, SEED_LIMIT - 1),
}
WHOLE = frozenset({"top_k", "seed"})
"""Controls that count; the others measure."""


@dataclass(slots=True)
class Session:
    """Everything that changes while one request is spoken. A model never holds any of it."""

    text: str
    voice: Voice
    language: str | None
    sampling: Sampling
    exaggeration: float
    seed: int
    started_s: float = field(default_factory=time.perf_counter)
    first_audio_s: float | None = None
    tokens: int = 0
    stage_ms: dict[str, float] = field(default_factory=dict)

    def lap(self, stage: str, since_s: float) -> float:
        """Book the time since `since_s` on a stage; gives the time now."""
        now = time.perf_counter()
        self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + 1000 * (now - since_s)
        return now


class TTS:
    """A loaded model. Safe to use from several threads."""

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        offline: bool = False,
        **options: Any,
    ) -> None:
        """model: a name of `nightingale models list`, a folder, or None for the voice in the box."""
        name = default_model() if model is None else model
        self._model = load_model(name, device=device, dtype=dtype, offline=offline, options=options)

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def notice(self) -> str | None:
        """What the user must know before listening, if anything."""
        return self._model.notice

    @property
    def sample_rate_hz(self) -> int:
        return CLOCKS.sample_rate_hz

    def say(
        self,
        text: str,
        *,
        voice: Voice | str | Path | None = None,
        language: str | None = None,
        seed: int | None = None,
        **controls: float | None,
    ) -> Audio:
        """The whole utterance. `controls` are those of `stream`."""
        session = self._open(text, voice, language, seed, controls)
        chunks = list(self._stream(session))
        samples = np.concatenate([chunk.samples for chunk in chunks])
        now_s = time.perf_counter()
        return Audio(
            samples=samples,
            sample_rate_hz=CLOCKS.sample_rate_hz,
            seed=session.seed,
            metrics=Metrics(
                ttfa_ms=1000 * ((session.first_audio_s or now_s) - session.started_s),
                total_ms=1000 * (now_s - session.started_s),
                audio_seconds=len(samples) / CLOCKS.sample_rate_hz,
                tokens=session.tokens,
                stage_ms=dict(session.stage_ms),
            ),
        )

    def stream(
        self,
        text: str,
        *,
        voice: Voice | str | Path | None = None,
        language: str | None = None,
        seed: int | None = None,
        **controls: float | None,
    ) -> Iterator[AudioChunk]:
        """Audio as it becomes audible.

        controls: temperature, top_p, min_p, top_k, repetition_penalty, cfg_weight, exaggeration. None, or
        left out, is the model's own default. The same text, voice, seed and controls give the same samples.
        """
        return self._stream(self._open(text, voice, language, seed, controls))

    def voice(self, reference: str | Path) -> Voice:
        """A voice by name, from a voice file, or from a clip (computed once, then kept by content hash)."""
        path = Path(reference).expanduser()
        if library.is_name(str(reference)) and not path.is_file():
            voice = library.load(str(reference))
        elif not path.is_file():
            raise VoiceNotFound(
                "no such voice",
                got=repr(str(reference)),
                allowed="a voice's name, a voice file, or a wav, flac, ogg or mp3 clip",
                fix="See `nightingale voices list`, or check the path.",
            )
        elif path.suffix == ".safetensors":
            voice = Voice.load(path)
        elif path.suffix == ".pt":
            voice = Voice.from_conds_pt(path, family=self._model.voice_family, name=path.stem)
        else:
            voice = enrolled(
                path, self._model.voice_family, self._model.fingerprint, lambda: self._enroll(path)
            )
        self._check_fits(voice)
        return voice

    def _enroll(self, path: Path) -> Voice:
        model = self._model
        return enroll_file(
            path,
            name=path.stem,
            family=model.voice_family,
            listeners=model.listeners(),
            habits=model.habits,
            prompt_tokens=model.speakers.t3.config.prompt_tokens,
        ).voice

    def _open(
        self,
        text: str,
        voice: Voice | str | Path | None,
        language: str | None,
        seed: int | None,
        controls: dict[str, float | None],
    ) -> Session:
        habits = self._model.habits
        _check_controls({**controls, "seed": seed}, habits)
        chosen = {name: value for name, value in controls.items() if value is not None}
        exaggeration = chosen.pop("exaggeration", habits.exaggeration)
        return Session(
            text=text,
            voice=self._resolve(voice),
            language=language,
            sampling=replace(habits.sampling, **chosen),  # type: ignore[arg-type]
            exaggeration=exaggeration,
            seed=fresh_seed() if seed is None else seed,
        )

    def _resolve(self, voice: Voice | str | Path | None) -> Voice:
        if isinstance(voice, Voice):
            self._check_fits(voice)
            return voice
        if voice is not None:
            return self.voice(voice)
        if self._model.default_voice is None:
            raise VoiceNotFound(
                f"the model {self.name!r} has no voice of its own here",
                got="no voice, and no conds.pt beside the weights",
                allowed="a voice's name, a voice file, or a clip of the speaker",
                fix="Pass one, on the command line with -v.",
            )
        return self._model.default_voice

    def _check_fits(self, voice: Voice) -> None:
        model = self._model
        widths = (model.speakers.t3.config.speaker_width, model.speakers.flow.config.speaker_width)
        sizes = (len(voice.speaker), len(voice.flow_speaker))
        if voice.family != model.voice_family or sizes != widths:
            raise VoiceError(
                f"the voice {voice.name!r} was made for another model",
                got=f"family {voice.family!r}, speaker vectors of sizes {sizes}",
                allowed=f"family {model.voice_family!r}, sizes {widths}, for the model {model.name!r}",
                fix="Choose one of this family (`nightingale voices list`), or make it again from its clip.",
            )

    def _stream(self, session: Session) -> Iterator[AudioChunk]:
        model = self._model
        pieces = cut(model.frontend, session.text, session.language, split_chars=model.habits.split_chars)
        session.lap("text", session.started_s)
        for number, piece in enumerate(pieces):
            samples = self._render(piece, session, nth_seed(session.seed, number))
            if session.first_audio_s is None:
                session.first_audio_s = time.perf_counter()
            yield AudioChunk(
                samples=np.pad(samples, (0, piece.pause_samples)), sample_rate_hz=CLOCKS.sample_rate_hz
            )

    def _render(self, piece: Piece, session: Session, seed: int) -> Samples:
        """text ids -> speech ids -> mel -> samples."""
        model, at = self._model, time.perf_counter()
        drawn = speak(
            model.speakers.t3,
            piece.text_ids,
            session.voice,
            habits=model.habits,
            sampling=session.sampling,
            exaggeration=session.exaggeration,
            rng=generator(seed, "tokens"),
        )
        ids = audible(list(drawn)) + [SILENCE_TOKEN] * model.habits.tail_silence_tokens
        session.tokens += len(ids)
        at = session.lap("t3", at)
        if not ids:
            return np.zeros(0, np.float32)
        mel = render_mel(model.speakers.flow, ids, session.voice, seed=seed)
        at = session.lap("flow", at)
        samples = _end(render_samples(model.speakers.hift, mel, seed=seed), len(ids), model.habits)
        session.lap("vocoder", at)
        return samples


def _end(samples: Samples, tokens: int, habits: Habits) -> Samples:
    """Without the audio of the last token, where the family is known to garble it."""
    return samples[: max(1, tokens - 1) * CLOCKS.samples_per_token] if habits.drop_last_token else samples


def _check_controls(controls: dict[str, float | int | None], habits: Habits) -> None:
    known = {*(f.name for f in fields(Sampling)), "exaggeration", "seed"}
    for name, value in controls.items():
        if name not in known:
            raise ConfigError(
                "unknown control", got=repr(name), allowed=", ".join(sorted(known)), fix="Check the spelling."
            )
        if value is None:
            continue
        if name in habits.ignored:
            raise ConfigError(
                f"this model has no {name}",
                got=f"{name}={value}",
                allowed=", ".join(sorted(known - habits.ignored)),
                fix="Leave it out, or choose a model that has it.",
            )
        low, high = RANGES[name]
        number = isinstance(value, int if name in WHOLE else int | float) and not isinstance(value, bool)
        # Written so that NaN, too, is refused.
        if not (number and low <= value <= high):
            raise ConfigError(
                f"{name} is out of range",
                got=repr(value),
                allowed=f"a {'whole ' if name in WHOLE else ''}number from {low} to {high}",
                fix="Choose a value inside the range.",
            )
