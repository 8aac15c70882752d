"""The engine's public class, `TTS`.

A model is loaded once and shared; everything that changes belongs to a request. `say` is the joined `stream`:
there is one path from text to audio.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from nightingale.backends import BACKENDS
from nightingale.backends.base import DraftModel
from nightingale.backends.profiles import Profile, profile_named, with_options
from nightingale.backends.selection import Plan, check_precision, find_machine, open_plan, select
from nightingale.clocks import CLOCKS
from nightingale.engine.load import Model, default_model, load_model
from nightingale.engine.requests.controls import (
    Control,
    RequestOptions,
    available_controls,
    build_request,
    show_options,
)
from nightingale.engine.requests.incremental_text import IncrementalSegmenter
from nightingale.engine.requests.live import LiveSession, Stream
from nightingale.engine.requests.segments import MAX_CHARS, SegmentQueue, TextSegment, segment_text
from nightingale.engine.session import Request, Session, Timing
from nightingale.engine.stream_capacity import MaxStreams, check_max_streams, known_wait_s
from nightingale.engine.voice_lookup import VoiceResolver
from nightingale.engine.worker import Worker
from nightingale.errors import raising_memory_full
from nightingale.models.defaults import StreamMode
from nightingale.text.languages import LANGUAGES, check_language
from nightingale.text.sentences import DEFAULT_SPAN_CHARS
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
    rate: float | None = None
    """Seconds of audio that the engine makes per second of work; None before it is known."""
    wait_s: float | None = 0.0
    """Estimated wait of a request that arrives now, in seconds; None if that is not known."""


class TTS:
    """A loaded model. It is safe to use from several threads: requests are decoded in batches."""

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        profile: str | None = None,
        stream: StreamMode | None = None,
        flow_steps: int | None = None,
        first_block_tokens: int | None = None,
        offline: bool = False,
        max_chars: int = MAX_CHARS,
        max_streams: MaxStreams = "auto",
        **options: Any,
    ) -> None:
        """Load a model and open its backends.

        Args:
            model: A name of `nightingale models list`, a folder, or None for the model in the package.
            device: "auto", "cpu", "cuda", or another device of an installed backend.
            dtype: T3's floating-point precision; "auto" leaves it to the profile.
            profile: "exact" computes in float32, as upstream does; "balanced" uses the fastest backends that are
                proven faithful; "fast" also lower precisions (`plan` says which). None or "default" is the
                model's default. Options may follow the name: docs/python.md.
            stream: "segment" renders each text segment whole, as upstream does; "block" hands out audio while the
                segment is still being decoded (docs/streaming.md). None is the model's default.
            flow_steps: Steps of the flow's solver: fewer are faster. None is upstream's number.
            first_block_tokens: Size of the first block, 5 to 32 tokens of 40 ms each, with stream="block".
            offline: Never fetch weights.
            max_chars: Longer texts are refused. Memory does not depend on it, since text is synthesized
                segment by segment.
            max_streams: Requests that are synthesized at once. "auto": as many as the engine can supply with
                audio while they play, by its measured rate; the others wait.
            options: `kind`, `t3` and `s3gen` select files of an official model. `s3gen="meanflow"` gives the
                English and the multilingual model Turbo's decoder, which takes two steps.
        """
        check_precision(dtype)
        check_max_streams(max_streams)
        asked = {"stream": stream, "flow_steps": flow_steps, "first_block_tokens": first_block_tokens}
        profile = with_options(profile, asked)
        profile_named(profile)  # a mistake is found before the model is loaded
        name = default_model() if model is None else model
        loaded = load_model(name, offline=offline, options=options)
        self._start(loaded, profile, max_chars, device, dtype, max_streams=max_streams)

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
        max_streams: MaxStreams = "auto",
    ) -> TTS:
        """Return an engine over a model that is loaded already. plan: the backends, if chosen already."""
        tts = cls.__new__(cls)
        tts._start(model, profile, max_chars, device, dtype, plan, check_max_streams(max_streams))
        return tts

    @raising_memory_full()
    def _start(
        self,
        model: Model,
        profile: str | Profile | None,
        max_chars: int,
        device: str,
        dtype: str,
        plan: Plan | None = None,
        max_streams: MaxStreams = "auto",
    ) -> None:
        if not isinstance(profile, Profile):
            profile = profile_named(profile, default=model.defaults.profile)
        plan = plan or select(BACKENDS, model.info, find_machine(BACKENDS, device), profile, dtype=dtype)
        self._plan, self._model, self._max_chars = plan, model, max_chars
        self._profile = profile = plan.profile
        for warning in plan.warnings:
            log.warning("%s, %s: %s", model.name, profile.name, warning)
        self._voices = VoiceResolver(model, plan.renderer.setup, plan.renderer.backend)
        draft = _draft_model(profile, model)
        decoder, renderer = open_plan(plan, model.source, voice=model.default_voice, draft=draft)
        self._worker = Worker(model, profile, decoder, renderer, max_streams)
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
        """A note that users must read before they listen; None if there is none."""
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
        scheduler = self._worker.scheduler
        waiting, speaking = len(scheduler.waiting), len(scheduler.running)
        wait_s, rate = known_wait_s(self._worker.wait_s()), self._worker.capacity.rate
        return Occupancy(waiting=waiting, speaking=speaking, slots=scheduler.slots, rate=rate, wait_s=wait_s)

    @property
    def at_once(self) -> int:
        """Requests that one caller may open together: a full set of slots, and as many in the queue. The rest
        of the queue is for other callers."""
        slots = self._worker.scheduler.slots
        return slots + min(slots, self._profile.queue_limit)

    @show_options
    def stream(self, text: str, **request: Unpack[RequestOptions]) -> Stream:
        """Return audio as it is rendered, for a text of any length; leaving the loop cancels the request."""
        return Stream(self.open(text, **request), self)

    @show_options
    def say(self, text: str, **request: Unpack[RequestOptions]) -> Audio:
        """Return the whole audio: the joined stream."""
        return _joined(self._open_whole(text, request))

    @show_options
    def say_many(self, texts: Iterable[str], **request: Unpack[RequestOptions]) -> list[Audio]:
        """Return the audio of several texts, decoded in batches. Each is what `say` returns with the same seed,
        up to rounding where the profile is not "exact"."""
        spoken: list[Audio] = []
        opened: deque[Session] = deque()
        try:
            for text in texts:
                if len(opened) == self.at_once:
                    spoken.append(_joined(opened.popleft()))
                opened.append(self._open_whole(text, request))
            spoken += map(_joined, opened)
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

    @show_options
    def open(self, text: str, **request: Unpack[RequestOptions]) -> Session:
        """Queue a request and return its session. Invalid requests are refused here."""
        defaults, session = self._model.defaults, self._session(request)
        segments = self._segmenter(request, session)(
            text,
            split_chars=defaults.split_chars,
            fill=defaults.fill_segments,
            short_first=self._profile.short_first_segment and not self._profile.in_blocks,
            max_chars=self._max_chars,
            closing_ms=defaults.closing_pause_ms,
        )
        session.timing.record("text", session.timing.opened_s)
        timed = _timed(segments, session.timing)
        self._worker.submit(session, SegmentQueue(timed), chars=len(text))
        return session

    def _open_whole(self, text: str, request: RequestOptions) -> Session:
        session = self.open(text, **request)
        session.plays = False
        return session

    @show_options
    def session(self, **request: Unpack[RequestOptions]) -> LiveSession:
        """Open a request whose text still arrives."""
        session = self._session(request)
        segments = SegmentQueue()
        self._worker.submit(session, segments)
        split_chars = self._model.defaults.split_chars or DEFAULT_SPAN_CHARS
        segmenter = self._segmenter(request, session)
        return LiveSession(
            session,
            segments,
            text=IncrementalSegmenter(max_chars=split_chars, language=request.get("language")),
            segment=partial(segmenter, split_chars=split_chars, fill=True, continues=True),
            max_chars=self._max_chars,
            wake=self._worker.wake,
            owner=self,
        )

    @show_options
    def check(self, **request: Unpack[RequestOptions]) -> None:
        """Raise the error that `session` would raise, without opening one."""
        self._request(request)
        language = request.get("language")
        if language is not None and (language or len(self.languages) == 1):
            check_language(language, self.languages)

    def _segmenter(self, request: RequestOptions, session: Session) -> Callable[..., Iterator[TextSegment]]:
        """Return `segment_text` with the options that all texts of a request share."""
        frontend, max_ids = self._model.frontend, self._model.defaults.max_text_ids
        if not request.get("normalize", True):
            frontend = replace(frontend, spell_out=None)
        language, speed = request.get("language"), session.request.speed
        return partial(segment_text, frontend, language=language, max_ids=max_ids, speed=speed)

    def _request(self, request: RequestOptions) -> Request:
        voice = self._voices.resolve(request.get("voice"))
        names = request.keys() - {"voice", "language", "seed", "normalize"}
        controls = {name: value for name, value in request.items() if name in names}
        return build_request(self._model.defaults, voice, request.get("seed"), controls)

    def _session(self, request: RequestOptions) -> Session:
        ahead_seconds = self._profile.ahead_seconds
        return Session(self._request(request), ahead_seconds=ahead_seconds, on_change=self._worker.wake)


def _draft_model(profile: Profile, model: Model) -> DraftModel | None:
    """Load the model that drafts, if the profile names one instead of another kind of draft."""
    name = profile.draft
    if name in ("", "lookup", "guess") or name.endswith(".safetensors"):
        return None
    draft = model if name == model.name else load_model(name, offline=True, options={})
    return DraftModel(source=draft.source, encode=draft.frontend.encode)


def _timed(segments: Iterator[TextSegment], timing: Timing) -> Iterator[TextSegment]:
    """Yield segments and record the time they take as the stage "text"."""
    started = time.perf_counter()
    for segment in segments:
        timing.record("text", started)
        yield segment
        started = time.perf_counter()


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
