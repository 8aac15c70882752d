"""Open an engine over a loaded model. `TTS` and `VoiceConverter` open theirs by the same function."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from nightingale.audio.watermark import marks_of
from nightingale.backends import BACKENDS
from nightingale.backends.base import Decoder
from nightingale.backends.profiles import Profile, profile_named
from nightingale.backends.selection import Plan, find_machine, open_plan, select
from nightingale.engine.faults import engine_forked
from nightingale.engine.load import Model
from nightingale.engine.monotonic_clock import Clock, system_clock
from nightingale.engine.no_decoder import NoDecoder
from nightingale.engine.rendering.word_timer import check_timing
from nightingale.engine.requests.controls import TEXT_OPTIONS, RequestOptions, build_request, check_request
from nightingale.engine.session import Request, Session
from nightingale.engine.stream_capacity import MaxStreams
from nightingale.engine.voice_lookup import VoiceResolver
from nightingale.engine.worker import Worker
from nightingale.errors import raising_memory_full
from nightingale.types import Samples

log = logging.getLogger("nightingale.engine")


class Engine:
    """A model, its voices, and the worker that runs its requests."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        worker: Worker,
        marks: Callable[[], Callable[[Samples], Samples] | None],
    ) -> None:
        """marks: returns what marks the chunks of one request; None if audio is not watermarked."""
        self.model = model
        self.plan = plan
        self.profile = plan.profile
        self.worker = worker
        self.voices = VoiceResolver(model, plan.renderer.setup, plan.renderer.backend)
        self._marks = marks
        self._process_id = os.getpid()

    def build_request(self, options: RequestOptions) -> Request:
        """Return the request that options ask for, or raise the error of an invalid one."""
        check_request(options)
        check_timing(options, self.model.info, self.worker.decoder)
        voice = self.voices.resolve(options.get("voice"))
        controls = {name: value for name, value in options.items() if name not in TEXT_OPTIONS}
        return build_request(self.model.defaults, voice, options.get("seed"), controls)

    def open_session(self, options: RequestOptions) -> Session:
        """Return a session for a request, which the caller then submits to the worker."""
        if os.getpid() != self._process_id:
            raise engine_forked()
        return Session(
            self.build_request(options),
            ahead_seconds=self.profile.ahead_seconds,
            on_change=self.worker.wake,
            mark=self._marks(),
            clock=self.worker.clock,
        )

    def close(self) -> None:
        """End all requests and the worker thread, unless they are those of the process that was forked."""
        if os.getpid() == self._process_id:
            self.worker.stop()


@raising_memory_full()
def open_engine(
    model: Model,
    profile: str | Profile | None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    plan: Plan | None = None,
    max_streams: MaxStreams = "auto",
    watermark: bool = False,
    speaks: bool = True,
    clock: Clock = system_clock,
) -> Engine:
    """Choose the backends of a model, open them, and return the engine. Its thread starts with the first request.

    The arguments are those of `TTS.over`, and:

        speaks: False to convert recordings only, without T3.
        clock: The clock that everything in the engine reads.
    """
    marks = marks_of(watermark)
    if not isinstance(profile, Profile):
        profile = profile_named(profile, default=model.defaults.profile)
    info = model.info
    plan = plan or select(BACKENDS, info, find_machine(BACKENDS, device, info), profile, dtype=dtype)
    decoder: Decoder
    if speaks:
        for warning in plan.warnings:
            log.warning("%s, %s: %s", model.name, plan.profile.name, warning)
        decoder, renderer = open_plan(plan, model.source, voice=model.default_voice)
    else:
        decoder = NoDecoder(info)
        renderer = plan.renderer.backend.open_renderer(model.source, plan.renderer.setup)
    worker = Worker(model, plan.profile, decoder, renderer, max_streams, clock)
    return Engine(model, plan, worker, marks)
