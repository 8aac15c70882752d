"""The face of the engine: one class, `TTS`.

A model is loaded once and shared; whatever changes belongs to a request. `say` is the joined `stream`: there
is one path from text to sound.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nightingale.clocks import CLOCKS
from nightingale.engine.controls import settle
from nightingale.engine.live import LiveSession
from nightingale.engine.load import Model, default_model, load_model
from nightingale.engine.pieces import cut
from nightingale.engine.profiles import profile_named
from nightingale.engine.session import Pieces, Session
from nightingale.engine.voicing import Voicing
from nightingale.engine.worker import Worker
from nightingale.values import Audio, AudioChunk
from nightingale.voices.voice import Voice


class TTS:
    """A loaded model. Safe to use from several threads: requests are decoded together, and heard apart."""

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        profile: str | None = None,
        offline: bool = False,
        **options: Any,
    ) -> None:
        """model: a name of `nightingale models list`, a folder, or None for the voice in the box.

        profile: "exact" renders each piece of text whole, as upstream does; "balanced" streams it. None is
        the model's own choice.
        """
        name = default_model() if model is None else model
        self._start(load_model(name, device=device, dtype=dtype, offline=offline, options=options), profile)

    @classmethod
    def over(cls, model: Model, profile: str | None = None) -> TTS:
        """An engine over a model that is already loaded."""
        tts = cls.__new__(cls)
        tts._start(model, profile)
        return tts

    def _start(self, model: Model, profile: str | None) -> None:
        self._model = model
        self._profile = profile_named(profile or model.habits.profile)
        self._voicing = Voicing(model)
        self._worker = Worker(model, self._profile)
        # A forgotten TTS must not leave its thread behind.
        weakref.finalize(self, self._worker.stop)

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

    def stream(
        self,
        text: str,
        *,
        voice: Voice | str | Path | None = None,
        language: str | None = None,
        seed: int | None = None,
        **controls: float | None,
    ) -> Iterator[AudioChunk]:
        """Audio as it becomes audible; leaving the loop stops the work.

        controls: temperature, top_p, min_p, top_k, repetition_penalty, cfg_weight, exaggeration, speed.
        None, or left out, is the model's own default. The same text, voice, seed and controls give the
        same samples.
        """
        session = self.open(text, voice=voice, language=language, seed=seed, **controls)
        return self._chunks(session)

    def say(
        self,
        text: str,
        *,
        voice: Voice | str | Path | None = None,
        language: str | None = None,
        seed: int | None = None,
        **controls: float | None,
    ) -> Audio:
        """The whole utterance: the stream, joined. `controls` are those of `stream`."""
        return _joined(self.open(text, voice=voice, language=language, seed=seed, **controls))

    def say_many(
        self,
        texts: Iterable[str],
        *,
        voice: Voice | str | Path | None = None,
        language: str | None = None,
        seed: int | None = None,
        **controls: float | None,
    ) -> list[Audio]:
        """Several utterances, decoded together. Each is what `say` would give it with the same seed."""
        sessions = [self.open(text, voice=voice, language=language, seed=seed, **controls) for text in texts]
        return [_joined(session) for session in sessions]

    def voice(self, reference: str | Path) -> Voice:
        """A voice by name, from a voice file, or from a clip (computed once, then kept by content hash)."""
        return self._voicing.find(reference)

    def close(self) -> None:
        """End what is being said, and the engine's thread. Also done when the object is forgotten."""
        self._worker.stop()

    def __enter__(self) -> TTS:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _chunks(self, session: Session) -> Iterator[AudioChunk]:
        """A method and not the bare iterator, so that whoever listens keeps the engine alive."""
        try:
            yield from session.chunks()
        finally:
            session.cancel()

    def open(
        self,
        text: str,
        *,
        voice: Voice | str | Path | None = None,
        language: str | None = None,
        seed: int | None = None,
        **controls: float | None,
    ) -> Session:
        """A session in the engine's line. What is wrong with a request is said here, before it is spoken."""
        model = self._model
        session = self._session(voice, seed, controls)
        pieces = cut(
            model.frontend,
            text,
            language,
            split_chars=model.habits.split_chars,
            fill=model.habits.fill_pieces,
        )
        session.timing.lap("text", session.timing.opened_s)
        self._worker.submit(session, Pieces(iter(pieces)))
        return session

    def session(
        self,
        *,
        voice: Voice | str | Path | None = None,
        language: str | None = None,
        seed: int | None = None,
        **controls: float | None,
    ) -> LiveSession:
        """Text in as it is written, audio out while it still arrives. `controls` are those of `stream`."""
        session, pieces = self._session(voice, seed, controls), Pieces()
        self._worker.submit(session, pieces)
        return LiveSession(
            session,
            pieces,
            frontend=self._model.frontend,
            habits=self._model.habits,
            language=language,
            wake=self._worker.wake,
        )

    def _session(
        self, voice: Voice | str | Path | None, seed: int | None, controls: dict[str, float | None]
    ) -> Session:
        request = settle(self._model.habits, self._voicing.resolve(voice), seed, controls)
        return Session(request, ahead_seconds=self._profile.ahead_seconds, on_change=self._worker.wake)


def _joined(session: Session) -> Audio:
    samples = [chunk.samples for chunk in session.chunks()]
    return Audio(
        samples=np.concatenate(samples) if samples else np.zeros(0, np.float32),
        sample_rate_hz=CLOCKS.sample_rate_hz,
        seed=session.request.seed,
        metrics=session.timing.metrics(),
    )
