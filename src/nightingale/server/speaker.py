"""The one thing routes talk to: an engine that is loaded, warm, counted, and gone when it is not needed.

    async with await speaker.open("Hello.") as speech:
        async for chunk in speech: ...

Leaving the block, or being cancelled in it, stops the work within a step of the engine.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from nightingale.clocks import CLOCKS
from nightingale.engine.aio import open_session
from nightingale.engine.model import default_model
from nightingale.engine.requests.controls import Control
from nightingale.engine.requests.live import LiveSession
from nightingale.engine.session import Session
from nightingale.engine.tts import TTS, Occupancy
from nightingale.errors import EngineFault, QueueFull, TextTooLong
from nightingale.server.loading import About, give_back_memory, gpu_bytes, load, warm_up
from nightingale.server.metrics import Meter
from nightingale.server.roster import Roster, VoiceCard
from nightingale.server.settings import Settings
from nightingale.server.speech import Conversation, Speech, new_id
from nightingale.types import Metrics
from nightingale.voices.voice import Voice

log = logging.getLogger("nightingale.server")

DESK_THREADS: Final = 4
"""For what reads files or cuts text; nobody waits for audio in one."""
RETRY_MS: Final = (100.0, 30_000.0)
MOST_ENROLMENTS: Final = 4
"""Uploaded clips that may wait for each other, each of them in memory."""

Args = ParamSpec("Args")
Result = TypeVar("Result")
Opened = TypeVar("Opened", Session, LiveSession)
VoiceSpec = Voice | str | Mapping[str, Any] | None


class Speaker:
    """A model that loads when it is needed, and everybody who listens to it."""

    def __init__(self, settings: Settings, tts: TTS | None = None) -> None:
        """tts: an engine that is there already; it is not unloaded when idle."""
        self.settings = settings
        self.meter = Meter()
        self.state = "cold"
        """cold, loading, ready, idle (unloaded, comes back when asked), stopping, failed"""
        self.failure: Exception | None = None
        """Why the model could not be loaded at the start."""
        self._given: TTS | None = tts
        self._tts: TTS | None = None
        self._about: About | None = None
        self._roster = Roster(settings)
        self._desk = ThreadPoolExecutor(DESK_THREADS, thread_name_prefix="nightingale-desk")
        self._loading, self._enrolling = asyncio.Lock(), asyncio.Lock()
        self._used_s = time.monotonic()
        self._opening = 0
        """Requests that are about to be opened: an engine that looks idle may not be."""
        self._open: set[Speech | Conversation] = set()
        self._telling = 0
        """Turns of sockets whose end was not told yet."""
        self._speaking_ms = 1000.0
        """How long a request has its slot, a running mean."""
        self._idle_watch: asyncio.Task[None] | None = None
        self._closed_s: float | None = None
        """Since when nothing new is taken."""
        self._enrolments = 0
        """Clips that were uploaded and are not voices yet."""
        self.meter.gauge("queue_depth", "Requests waiting for a slot.", lambda: self.occupancy.waiting)
        self.meter.gauge("batch_size", "Requests that have a slot.", lambda: self.occupancy.speaking)
        self.meter.gauge("model_loaded", "1 while the model is in memory.", lambda: self._tts is not None)
        self.meter.gauge("gpu_memory_bytes", "Memory that torch holds on the GPU.", gpu_bytes)

    @property
    def ready(self) -> bool:
        """Warm, or unloaded after it was; a request will be answered."""
        return self.state in ("ready", "idle")

    @property
    def model_name(self) -> str:
        if self._about is None:
            return str(self.settings.model or default_model())
        return self._about.name

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages the model speaks; none while it was never loaded."""
        return () if self._about is None else self._about.languages

    @property
    def controls(self) -> dict[str, Control]:
        """What the model can be told, by name."""
        return {} if self._about is None else self._about.controls

    @property
    def notice(self) -> str | None:
        return None if self._about is None else self._about.notice

    @property
    def sample_rate_hz(self) -> int:
        return CLOCKS.sample_rate_hz

    @property
    def occupancy(self) -> Occupancy:
        if self._tts is None:
            return Occupancy(waiting=0, speaking=0, slots=self.settings.slots)
        return self._tts.occupancy

    @property
    def retry_after_ms(self) -> int:
        """When a slot in the line may be free: a quarter of it, at the pace of late. Jittered, so that those
        who were sent away together do not come back together."""
        crowd = self.occupancy
        wait_ms = self._speaking_ms / crowd.slots * max(1.0, crowd.waiting / 4) * random.uniform(0.75, 1.25)
        return round(min(max(wait_ms, RETRY_MS[0]), RETRY_MS[1]))

    async def start(self) -> None:
        """Load and warm up; `ready` afterwards."""
        try:
            await self._engine()
        except Exception as error:
            self.failure = error
            raise
        if self.settings.keep_alive >= 0 and self._given is None:
            self._idle_watch = asyncio.create_task(self._unload_when_idle())

    def close_door(self) -> None:
        """Take nothing new. The time that speech has to finish begins."""
        if self._closed_s is None:
            self.state, self._closed_s = "stopping", time.monotonic()

    async def finish(self, grace_s: float = 0.0) -> int:
        """Take nothing new; let speech finish for a while. Gives how many still speak after it."""
        self.close_door()
        deadline = (self._closed_s or 0.0) + grace_s
        while (self._open or self._telling) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return max(len(self._open), self._telling)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """A listener is on a socket, which a shutdown would close: its last sound is not its last message."""
        self._telling += 1
        try:
            yield
        finally:
            self._telling -= 1

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take nothing new; let speech finish for a while; end the rest."""
        await self.finish(grace_s)
        if self._idle_watch is not None:
            self._idle_watch.cancel()
        for speech in list(self._open):
            speech.cancel()
        if self._tts is not None and self._given is None:
            await self._in_thread(self._tts.close)
        self._tts = None
        self._desk.shutdown(wait=False, cancel_futures=True)

    async def open(
        self,
        text: str,
        *,
        voice: VoiceSpec = None,
        language: str | None = None,
        seed: int | None = None,
        request_id: str | None = None,
        normalize: bool = True,
        **controls: float | None,
    ) -> Speech:
        """Speech in the engine's line. What is wrong with the request is raised here."""
        if len(text) > self.settings.max_text_chars:
            raise TextTooLong(
                "the text is too long for one request",
                got=f"{len(text)} characters",
                allowed=f"at most {self.settings.max_text_chars}",
                fix="Send it in parts, or raise max_text_chars.",
            )
        account = self.meter.open()

        def make(tts: TTS, who: Voice | None) -> Session:
            return tts.open(text, voice=who, language=language, seed=seed, normalize=normalize, **controls)

        try:
            session = await self._opened(voice, make)
        except BaseException:
            account.close(None)
            raise
        account.characters(len(text))
        return Speech(self, session, account, request_id or new_id())

    async def session(
        self,
        *,
        voice: VoiceSpec = None,
        language: str | None = None,
        seed: int | None = None,
        request_id: str | None = None,
        normalize: bool = True,
        **controls: float | None,
    ) -> Conversation:
        """Text in as it is written, audio out while it still arrives."""
        account = self.meter.open()

        def make(tts: TTS, who: Voice | None) -> LiveSession:
            return tts.session(voice=who, language=language, seed=seed, normalize=normalize, **controls)

        try:
            session = await self._opened(voice, make)
        except BaseException:
            account.close(None)
            raise
        return Conversation(self, session, account, request_id or new_id())

    async def voices(self) -> list[VoiceCard]:
        return await self._with_engine(self._roster.cards)

    async def add_voice(self, name: str, clip: bytes) -> VoiceCard:
        """A voice from an uploaded clip. One at a time: listening to a clip takes a core."""
        if self._enrolments >= MOST_ENROLMENTS:
            raise QueueFull(
                "too many clips wait to become voices",
                got=f"{self._enrolments} of them",
                allowed=f"at most {MOST_ENROLMENTS}",
                fix="Send it again later.",
            )
        self._enrolments += 1
        try:
            async with self._enrolling:
                return await self._with_engine(partial(self._roster.add, name, clip))
        finally:
            self._enrolments -= 1

    async def remove_voice(self, name: str) -> None:
        await self._with_engine(partial(self._roster.remove, name))

    async def resolve_voice(self, spec: VoiceSpec) -> Voice | None:
        """Who is meant by a name, an alias, {"id": …} or a blend; None is the model's own voice."""
        if isinstance(spec, Voice):
            return spec
        return await self._with_engine(partial(self._roster.resolve, spec))

    async def check(
        self,
        *,
        voice: VoiceSpec = None,
        language: str | None = None,
        seed: int | None = None,
        **controls: float | None,
    ) -> None:
        """Refuse what `session` would refuse, without opening one."""

        def act(tts: TTS) -> None:
            who = voice if isinstance(voice, Voice) else self._roster.resolve(voice, tts)
            tts.check(voice=who, language=language, seed=seed, **controls)

        await self._with_engine(act)

    def entered(self, speech: Speech | Conversation) -> None:
        self._open.add(speech)

    def left(self, speech: Speech | Conversation, cost: Metrics, finished: bool) -> None:
        self._open.discard(speech)
        self._used_s = time.monotonic()
        if finished:
            self._speaking_ms += 0.2 * (cost.total_ms - cost.queue_ms - self._speaking_ms)

    async def _opened(self, voice: VoiceSpec, make: Callable[[TTS, Voice | None], Opened]) -> Opened:
        return await open_session(self._open_session(voice, make))

    async def _open_session(self, voice: VoiceSpec, make: Callable[[TTS, Voice | None], Opened]) -> Opened:
        tried: TTS | None = None

        def act(tts: TTS) -> Opened:
            nonlocal tried
            tried = tts
            return make(tts, voice if isinstance(voice, Voice) else self._roster.resolve(voice, tts))

        try:
            return await self._with_engine(act)
        except EngineFault:
            # Only an engine whose thread has died refuses like this. Once more, with a new one.
            if self._given is not None or self.state == "stopping":
                raise
            # Others may have tried the same one, and the first of them has replaced it by now.
            if self._tts is tried:
                log.error("the engine died and is loaded again")
                self._tts = None
            return await self._with_engine(act)

    async def _with_engine(self, act: Callable[[TTS], Result]) -> Result:
        """Do something with the engine in a thread; it is not unloaded meanwhile."""
        self._opening += 1
        try:
            return await self._in_thread(act, await self._engine())
        finally:
            self._opening -= 1
            self._used_s = time.monotonic()

    async def _engine(self) -> TTS:
        if self.state == "stopping":
            raise EngineFault(
                "the server is shutting down", got="a new request", allowed="none now", fix="Try again soon."
            )
        if self._tts is None or self.state in ("cold", "failed"):
            async with self._loading:
                if self._tts is None or self.state in ("cold", "failed"):
                    self.state, at = "loading", time.monotonic()
                    try:
                        given = self._given
                        tts = await self._in_thread(load, self.settings) if given is None else given
                        await self._in_thread(warm_up, tts, self._roster)
                    except BaseException:
                        self.state = "failed"
                        raise
                    self._about = About.of(tts)
                    self._tts, self.state = tts, "ready"
                    self._used_s = time.monotonic()
                    log.info("ready", extra={"model": tts.name, "load_s": round(self._used_s - at, 3)})
        assert self._tts is not None
        return self._tts

    async def _unload_when_idle(self) -> None:
        keep_s = self.settings.keep_alive
        while True:
            idle_s = time.monotonic() - self._used_s
            busy = self._open or self._opening or self._loading.locked()
            if self._tts is not None and not busy and idle_s >= keep_s:
                tts, self._tts, self.state = self._tts, None, "idle"
                await self._in_thread(tts.close)
                del tts
                await self._in_thread(give_back_memory)
                log.info("unloaded", extra={"idle_s": round(idle_s, 1)})
            await asyncio.sleep(max(0.05, min(keep_s - idle_s, 5.0)))

    async def _in_thread(self, act: Callable[Args, Result], *args: Args.args, **more: Args.kwargs) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._desk, partial(act, *args, **more))
