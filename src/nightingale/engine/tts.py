"""The engine's public class, `TTS`.

A model is loaded once and shared; everything that changes belongs to a request. `say` is the joined `stream`:
there is one path from text to audio.
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

from nightingale.backends import BACKENDS
from nightingale.backends.base import DraftModel
from nightingale.backends.profiles import Profile, profile_named
from nightingale.backends.selection import Plan, check_precision, find_machine, select
from nightingale.clocks import CLOCKS
from nightingale.engine.load import default_model, load_model
from nightingale.engine.model import Model
from nightingale.engine.requests.controls import Control, available_controls, build_request
from nightingale.engine.requests.live import LiveSession
from nightingale.engine.requests.segment_queue import SegmentQueue
from nightingale.engine.requests.segments import MAX_CHARS, TextSegment, segment_text
from nightingale.engine.requests.stream_handle import Stream
from nightingale.engine.session import Session, Timing
from nightingale.engine.voice_lookup import VoiceResolver
from nightingale.engine.worker import Worker
from nightingale.text.frontend import Frontend
from nightingale.text.languages import LANGUAGES, check_language
from nightingale.types import Audio, AudioChunk
from nightingale.voices.voice import Voice

log = logging.getLogger("nightingale.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """The load of an engine at this moment."""

    waiting: int
    """Requests that wait for a slot."""
    speaking: int
    """Requests in slots."""
    slots: int


class TTS:
    """A loaded model. It is safe to use from several threads: requests are decoded in batches."""

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
        """Load a model and open its backends.

        Args:
            model: A name of `nightingale models list`, a folder, or None for the model in the package.
            device: "auto", "cpu", "cuda", or another device of an installed backend.
            dtype: T3's floating-point precision; "auto" leaves it to the profile.
            profile: "exact" renders each text segment whole, as upstream does; "balanced" streams it; "fast"
                streams it with the fastest backends of this machine (`plan` says which). None is the model's
                default. Options may follow the name: docs/configuration.md.
            offline: Never fetch weights.
            max_chars: Longer texts are refused. Memory does not depend on it, since text is synthesized
                segment by segment.
            options: `kind`, `t3` and `s3gen` select files of an official model.
        """
        check_precision(dtype)
        chosen = profile_named(profile) if profile else None
        name = default_model() if model is None else model
        self._start(load_model(name, offline=offline, options=options), chosen, max_chars, device, dtype)

    @classmethod
    def over(
        cls,
        model: Model,
        profile: str | Profile | None = None,
        *,
        max_chars: int = MAX_CHARS,
        device: str = "auto",
        dtype: str = "auto",
        plan: Plan | None = None,
    ) -> TTS:
        """Return an engine over a model that is loaded already. plan: the backends, if chosen already."""
        tts = cls.__new__(cls)
        tts._start(model, profile, max_chars, device, dtype, plan)
        return tts

    def _start(
        self,
        model: Model,
        profile: str | Profile | None,
        max_chars: int,
        device: str,
        dtype: str,
        plan: Plan | None = None,
    ) -> None:
        if not isinstance(profile, Profile):
            profile = profile_named(profile or model.defaults.profile)
        self._profile, self._max_chars = profile, max_chars
        plan = plan or select(BACKENDS, model.info, find_machine(BACKENDS, device), profile, dtype=dtype)
        self._plan, self._model = plan, model
        for warning in plan.warnings:
            log.warning("%s, %s: %s", model.name, profile.name, warning)
        self._voices = VoiceResolver(model, plan.renderer.setup)
        renderer = plan.renderer.backend.open_renderer(
            model.source, replace(plan.renderer.setup, voice=model.default_voice)
        )
        setup = replace(
            plan.decoder.setup, threads=renderer.decoder_threads, draft=_draft_model(profile, model)
        )
        decoder = plan.decoder.backend.open_decoder(model.source, setup)
        self._worker = Worker(model, profile, decoder, renderer)
        # A TTS that is garbage-collected must not leave its thread behind.
        weakref.finalize(self, self._worker.stop)

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def plan(self) -> Plan:
        """The backend of each role, and why."""
        return self._plan

    @property
    def notice(self) -> str | None:
        """What a user must know before listening, if anything."""
        return self._model.notice

    @property
    def sample_rate_hz(self) -> int:
        return CLOCKS.sample_rate_hz

    @property
    def default_voice(self) -> Voice | None:
        """The voice of requests that name none."""
        return self._model.default_voice

    @property
    def voice_family(self) -> str:
        """The family whose voices it can use."""
        return self._model.voice_family

    @property
    def voices_folder(self) -> Path | None:
        """Folder of the voices that came with the model, where that is not the package's."""
        return self._model.voices

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages it speaks."""
        return tuple(LANGUAGES) if self.name == "multilingual" else ("en",)

    @property
    def controls(self) -> dict[str, Control]:
        """Request parameters besides text, voice, language and seed."""
        return available_controls(self._model.defaults)

    @property
    def occupancy(self) -> Occupancy:
        line = self._worker.scheduler
        return Occupancy(waiting=len(line.waiting), speaking=len(line.running), slots=line.slots)

    @property
    def at_once(self) -> int:
        """Requests that one caller may open together: a full set of slots, and as many in the queue. The rest
        of the queue is for other callers."""
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
        """Return audio as it is rendered; leaving the loop cancels the request.

        Args:
            text: Text of any length.
            voice: A voice, its name, a voice file, or a clip to clone. None is the model's own voice.
            language: A language code, for multilingual models.
            seed: The same text, voice, seed and controls give the same samples: in the profile "exact" always,
                in others if the engine runs no other request meanwhile.
            normalize: Write digits and symbols out in words first, where the model has that step.
            controls: temperature, top_p, min_p, top_k, repetition_penalty, cfg_weight, exaggeration, speed.
                None, or left out, is the model's default.
        """
        session = self.open(text, voice=voice, language=language, seed=seed, normalize=normalize, **controls)
        return Stream(session, self)

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
        """Return the whole audio: the joined stream. The arguments are those of `stream`."""
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
        """Return the audio of several texts, decoded in batches. Each is what `say` returns with the same seed,
        up to rounding where the profile is not "exact"."""
        spoken: list[Audio] = []
        opened: deque[Session] = deque()
        request: dict[str, Any] = {"voice": voice, "language": language, "seed": seed, **controls}
        try:
            for text in texts:
                if len(opened) == self.at_once:
                    spoken.append(_joined(opened.popleft()))
                opened.append(self.open(text, normalize=normalize, **request))
            while opened:
                spoken.append(_joined(opened.popleft()))
        finally:
            for session in opened:
                session.cancel()
        return spoken

    def voice(self, reference: str | Path) -> Voice:
        """Return a voice by name, from a voice file, or from a clip (computed once, then cached by content)."""
        return self._voices.find(reference)

    def learn(self, clip: bytes, *, name: str, max_seconds: float) -> Voice:
        """Return a voice made from the bytes of an untrusted audio file; nothing is stored."""
        return self._voices.learn(clip, name=name, max_seconds=max_seconds)

    def close(self) -> None:
        """End all requests and the worker thread. Also done when the object is garbage-collected."""
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
        """Queue a request and return its session. Invalid requests are refused here. See `stream`."""
        defaults = self._model.defaults
        session = self._session(voice, seed, controls)
        segments = segment_text(
            self._frontend(normalize),
            text,
            language,
            split_chars=defaults.split_chars,
            fill=defaults.fill_segments,
            max_ids=defaults.max_text_ids,
            max_chars=self._max_chars,
            speed=session.request.speed,
            closing_ms=defaults.closing_pause_ms,
        )
        session.timing.record("text", session.timing.opened_s)
        timed = _timed(segments, session.timing)
        self._worker.submit(session, SegmentQueue(timed, reached=session.reached))
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
        """Open a request whose text still arrives. The arguments are those of `stream`."""
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
        """Raise the error that `session` would raise, without opening one."""
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


def _draft_model(profile: Profile, model: Model) -> DraftModel | None:
    """Load the model that drafts, if the profile names one instead of another kind of draft."""
    name = profile.draft
    if name in ("", "lookup", "guess") or name.endswith(".safetensors"):
        return None
    draft = model if name == model.name else load_model(name, offline=True, options={})
    return DraftModel(source=draft.source, encode=draft.frontend.encode)


def _timed(segments: Iterator[TextSegment], timing: Timing) -> Iterator[TextSegment]:
    """Yield segments and book the time they take on the stage "text"."""
    while True:
        started = time.perf_counter()
        segment = next(segments, None)
        timing.record("text", started)
        if segment is None:
            return
        yield segment


def audio_of(session: Session, chunks: Iterable[AudioChunk]) -> Audio:
    """Return the chunks of a session, joined."""
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
        session.cancel()  # frees the request if the caller was interrupted
