"""The face of the engine: one class, `TTS`.

A model is loaded once and shared; whatever changes belongs to a request. `say` is the joined `stream`: there
is one path from text to sound.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nightingale.clocks import CLOCKS
from nightingale.engine.requests.controls import Control, available_controls, build_request
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.engine.requests.stream_handle import Stream
from nightingale.engine.requests.live import LiveSession
from nightingale.engine.load import fitted, load_model, open_decoder, open_renderer, plan_for
from nightingale.engine.model import Model, default_model
from nightingale.engine.requests.segments import MAX_CHARS, TextSegment, segment_text
from nightingale.engine.plan import Plan
from nightingale.engine.profiles import Profile, profile_named
from nightingale.engine.session import SegmentQueue, Session, Timing
from nightingale.engine.voice_lookup import VoiceResolver
from nightingale.engine.worker import Worker
from nightingale.text.frontend import Frontend
from nightingale.text.languages import LANGUAGES, check_language
from nightingale.types import Audio, AudioChunk
from nightingale.voices.voice import Voice

log = logging.getLogger("nightingale.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How busy an engine is at this moment."""

    waiting: int
    """Requests in line for a slot."""
    speaking: int
    """Requests that have one."""
    slots: int


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
        max_chars: int = MAX_CHARS,
        **options: Any,
    ) -> None:
        """model: a name of `nightingale models list`, a folder, or None for the voice in the box.

        profile: "exact" renders each segment of text whole, as upstream does; "balanced" streams it; "fast"
        streams it with all the speed this machine has (`plan` says which). None is the model's own choice.
        max_chars: a longer text is refused; it says nothing about memory, since text is cut and spoken segment
        by segment.
        """
        name = default_model() if model is None else model
        wanted = profile or (MODEL_DEFAULTS[str(name)].profile if str(name) in MODEL_DEFAULTS else None)
        chosen = profile_named(wanted) if wanted else None
        loaded = load_model(
            name, device=device, dtype=dtype, offline=offline, options=options, profile=chosen
        )
        self._start(loaded, chosen, max_chars)

    @classmethod
    def over(
        cls,
        model: Model,
        profile: str | Profile | None = None,
        *,
        max_chars: int = MAX_CHARS,
        plan: Plan | None = None,
    ) -> TTS:
        """An engine over a model that is already loaded. plan: what this machine grants, if not given."""
        tts = cls.__new__(cls)
        tts._start(model, profile, max_chars, plan)
        return tts

    def _start(
        self, model: Model, profile: str | Profile | None, max_chars: int, plan: Plan | None = None
    ) -> None:
        if not isinstance(profile, Profile):
            profile = profile_named(profile or model.defaults.profile)
        self._profile, self._max_chars = profile, max_chars
        self._plan = plan or plan_for(model, profile)
        for refusal in self._plan.refusals:
            log.warning("%s, %s: %s", model.name, profile.name, refusal)
        self._model = model = fitted(model, self._plan)
        self._voices = VoiceResolver(model)
        studio = open_renderer(model, profile, self._plan)
        threads = studio.shares.t3 if studio.shares else None
        self._worker = Worker(model, profile, open_decoder(model, profile, self._plan, threads=threads), studio)
        # A forgotten TTS must not leave its thread behind.
        weakref.finalize(self, self._worker.stop)

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def plan(self) -> Plan:
        """What runs where, and why."""
        return self._plan

    @property
    def notice(self) -> str | None:
        """What the user must know before listening, if anything."""
        return self._model.notice

    @property
    def sample_rate_hz(self) -> int:
        return CLOCKS.sample_rate_hz

    @property
    def default_voice(self) -> Voice | None:
        """Who speaks when no voice is asked for."""
        return self._model.default_voice

    @property
    def voice_family(self) -> str:
        """Which voices it can wear."""
        return self._model.voice_family

    @property
    def voices_folder(self) -> Path | None:
        """Voices that came with it, where those are not the package's."""
        return self._model.voices

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages it speaks."""
        return tuple(LANGUAGES) if self.name == "multilingual" else ("en",)

    @property
    def controls(self) -> dict[str, Control]:
        """What it can be told besides text, voice, language and seed."""
        return available_controls(self._model.defaults)

    @property
    def occupancy(self) -> Occupancy:
        line = self._worker.scheduler
        return Occupancy(waiting=len(line.waiting), speaking=len(line.running), slots=line.slots)

    @property
    def at_once(self) -> int:
        """So many requests one caller may open together: those that are spoken, and as many in line. The rest
        of the line is for others."""
        return self._profile.slots + min(self._profile.slots, self._profile.queue_limit)

    def stream(
        self,
        text: str,
        *,
        voice: Voice | str | Path | None = None,
        language: str | None = None,
        seed: int | None = None,
        normalize: bool = True,
        **controls: float | None,
    ) -> Stream:
        """Audio as it becomes audible; leaving the loop stops the work. `metrics` says what it cost.

        controls: temperature, top_p, min_p, top_k, repetition_penalty, cfg_weight, exaggeration, speed.
        None, or left out, is the model's own default. The same text, voice, seed and controls give the
        same samples, in the profile "exact" always, in the others if nobody else is speaking meanwhile.
        """
        session = self.open(text, voice=voice, language=language, seed=seed, normalize=normalize, **controls)
        return Stream(session, owner=self)

    def say(
        self,
        text: str,
        *,
        voice: Voice | str | Path | None = None,
        language: str | None = None,
        seed: int | None = None,
        normalize: bool = True,
        **controls: float | None,
    ) -> Audio:
        """The whole utterance: the stream, joined. `controls` are those of `stream`."""
        return _joined(
            self.open(text, voice=voice, language=language, seed=seed, normalize=normalize, **controls)
        )

    def say_many(
        self,
        texts: Iterable[str],
        *,
        voice: Voice | str | Path | None = None,
        language: str | None = None,
        seed: int | None = None,
        normalize: bool = True,
        **controls: float | None,
    ) -> list[Audio]:
        """Several utterances, decoded together. Each is what `say` would give it with the same seed; where
        the profile is not "exact", up to rounding."""
        heard: list[Audio] = []
        opened: deque[Session] = deque()
        request: dict[str, Any] = {"voice": voice, "language": language, "seed": seed, **controls}
        try:
            for text in texts:
                if len(opened) == self.at_once:
                    heard.append(_joined(opened.popleft()))
                opened.append(self.open(text, normalize=normalize, **request))
            while opened:
                heard.append(_joined(opened.popleft()))
        finally:
            for session in opened:
                session.cancel()
        return heard

    def voice(self, reference: str | Path) -> Voice:
        """A voice by name, from a voice file, or from a clip (computed once, then kept by content hash)."""
        return self._voices.find(reference)

    def learn(self, clip: bytes, *, name: str, max_seconds: float) -> Voice:
        """A voice from the bytes of a sound file that came from a stranger; nothing is kept of it."""
        return self._voices.learn(clip, name=name, max_seconds=max_seconds)

    def close(self) -> None:
        """End what is being said, and the engine's thread. Also done when the object is forgotten."""
        self._worker.stop()

    def __enter__(self) -> TTS:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(
        self,
        text: str,
        *,
        voice: Voice | str | Path | None = None,
        language: str | None = None,
        seed: int | None = None,
        normalize: bool = True,
        **controls: float | None,
    ) -> Session:
        """A session in the engine's line. What is wrong with a request is said here, before it is spoken.

        normalize: whether digits and symbols are written out in words first, where the model has that step.
        """
        defaults = self._model.defaults
        session = self._session(voice, seed, controls)
        segments = segment_text(
            self._frontend(normalize),
            text,
            language,
            split_chars=defaults.split_chars,
            fill=defaults.fill_pieces,
            max_ids=defaults.max_text_ids,
            max_chars=self._max_chars,
            speed=session.request.speed,
            closing_ms=defaults.closing_pause_ms,
        )
        session.timing.lap("text", session.timing.opened_s)
        self._worker.submit(session, SegmentQueue(_timed(segments, session.timing), reached=session.reached))
        return session

    def session(
        self,
        *,
        voice: Voice | str | Path | None = None,
        language: str | None = None,
        seed: int | None = None,
        normalize: bool = True,
        **controls: float | None,
    ) -> LiveSession:
        """Text in as it is written, audio out while it still arrives. `controls` are those of `stream`."""
        session = self._session(voice, seed, controls)
        segments = SegmentQueue(reached=session.reached)
        self._worker.submit(session, segments)
        return LiveSession(
            session,
            segments,
            frontend=self._frontend(normalize),
            defaults=self._model.defaults,
            language=language,
            max_chars=self._max_chars,
            wake=self._worker.wake,
            owner=self,
        )

    def check(
        self,
        *,
        voice: Voice | str | Path | None = None,
        language: str | None = None,
        seed: int | None = None,
        **controls: float | None,
    ) -> None:
        """Refuse what `session` would refuse, without opening one."""
        build_request(self._model.defaults, self._voices.resolve(voice), seed, controls)
        if language is not None and (language or len(self.languages) == 1):
            check_language(language, self.languages)

    def _frontend(self, normalize: bool) -> Frontend:
        frontend = self._model.frontend
        return frontend if normalize else replace(frontend, spell_out=None)

    def _session(
        self, voice: Voice | str | Path | None, seed: int | None, controls: dict[str, float | None]
    ) -> Session:
        request = build_request(self._model.defaults, self._voices.resolve(voice), seed, controls)
        return Session(request, ahead_seconds=self._profile.ahead_seconds, on_change=self._worker.wake)


def _timed(segments: Iterator[TextSegment], timing: Timing) -> Iterator[TextSegment]:
    """The segments, each made while the one before it is heard; what that takes is booked on the text."""
    while True:
        at = time.perf_counter()
        segment = next(segments, None)
        timing.lap("text", at)
        if segment is None:
            return
        yield segment


def audio_of(session: Session, chunks: Iterable[AudioChunk]) -> Audio:
    """All that was heard of a session, joined."""
    samples = [chunk.samples for chunk in chunks]
    return Audio(
        samples=np.concatenate(samples) if samples else np.zeros(0, np.float32),
        sample_rate_hz=CLOCKS.sample_rate_hz,
        seed=session.request.seed,
        metrics=session.timing.metrics(),
    )


def _joined(session: Session) -> Audio:
    try:
        return audio_of(session, session.chunks())
    finally:
        session.cancel()  # whoever was interrupted no longer listens
