"""The service that all protocols use: it loads the engine, opens streams, and unloads the engine when idle."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends
from starlette.requests import HTTPConnection

from nightingale.backends.base import DEFAULT_SLOTS
from nightingale.clocks import CLOCKS
from nightingale.engine.aio import open_session
from nightingale.engine.lexicon_files import Lexicon, open_lexicon
from nightingale.engine.load import default_model
from nightingale.engine.requests.live import LiveSession
from nightingale.engine.session import Session
from nightingale.engine.stream_capacity import Occupancy
from nightingale.engine.tts import TTS
from nightingale.errors import EngineFault, QueueFull, TextTooLong, raising_memory_full
from nightingale.server.metrics import ServerMetrics
from nightingale.server.service import model_loading
from nightingale.server.service.model_loading import ModelCard, gpu_memory_bytes, resident_bytes
from nightingale.server.service.speech_streams import (
    AsyncEncoder,
    LiveSpeechStream,
    OnClose,
    OutputFormat,
    SpeechStream,
)
from nightingale.server.service.voice_registry import VoiceInfo
from nightingale.server.settings import ServerSettings
from nightingale.server.tenants.tenant_registry import TenantRegistry
from nightingale.server.tenants.tenant_usage import TenantRequest
from nightingale.server.tenants.tenant_voices import TenantVoices
from nightingale.server.tracing import open_tracing
from nightingale.types import Samples
from nightingale.voices.voice import Voice

log = logging.getLogger("nightingale.server")

WORKER_THREADS: Final = 4
"""For reading files and segmenting text. No thread waits for audio."""
ENCODER_THREADS: Final = 2
MAX_PENDING_UPLOADS: Final = 4
"""Uploaded clips, each in memory, that may wait to be processed."""

Result = TypeVar("Result")
AnySession = TypeVar("AnySession", Session, LiveSession)
AnyStream = TypeVar("AnyStream", bound=SpeechStream)
VoiceSpec = Voice | str | Mapping[str, Any] | None


class SpeechService:
    """An engine that is loaded on demand, and the streams that read from it."""

    def __init__(self, settings: ServerSettings, tts: TTS | None = None) -> None:
        """tts: an existing engine, which is then never unloaded; by default it is loaded by `start`."""
        self.settings = settings
        self._lexicon = open_lexicon(settings.lexicon)
        self.metrics = ServerMetrics()
        self.tracing = open_tracing(enabled=settings.tracing)
        self.tenants = TenantRegistry(settings, self.metrics)
        self.model = ModelCard(id=str(settings.model or default_model()))
        self.state = "cold"
        """One of cold, loading, ready, idle (unloaded until the next request), stopping and failed."""
        self.failure: Exception | None = None
        """The exception that `start` raised."""
        self.sample_rate_hz = CLOCKS.sample_rate_hz
        self._given_tts = tts
        self._tts: TTS | None = None
        self._voices = TenantVoices(settings, self.tenants)
        self._threads = ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="nightingale-service")
        self._encoder_threads = ThreadPoolExecutor(ENCODER_THREADS, thread_name_prefix="nightingale-encode")
        self._load_lock, self._upload_lock = asyncio.Lock(), asyncio.Lock()
        self._pending_uploads = 0
        self._pending_calls = 0
        """Calls that use the engine now: it must not be unloaded although no stream is open."""
        self._open_streams: set[SpeechStream] = set()
        self.open_turns: set[object] = set()
        """Turns of sockets whose last message has not been sent yet."""
        self._opening = 0
        """Requests that wait to be queued: for the most part, for the model to be loaded."""
        self._slots = settings.slots or DEFAULT_SLOTS
        """Slots of the engine; a guess until it was loaded once."""
        self._load_s: float | None = None
        """The time that the last loading took, in seconds."""
        self._last_used_s = self._load_began_s = time.monotonic()
        self._idle_task: asyncio.Task[None] | None = None
        self._stopping_since_s: float | None = None
        gauge = self.metrics.gauge
        gauge("queue_depth", "Requests that wait for a slot.").set_function(lambda: self.occupancy.waiting)
        gauge("queue_wait_estimate_seconds", "Estimated wait of a request that arrives now.").set_function(
            lambda: math.nan if (wait_s := self.occupancy.wait_s) is None else wait_s
        )
        gauge("batch_size", "Requests that have a slot.").set_function(lambda: self.occupancy.speaking)
        gauge("capacity_listeners", "Listeners that can be kept supplied at once.").set_function(
            lambda: math.nan if (capacity := self.occupancy.capacity) is None else capacity
        )
        gauge("model_loaded", "1 while the model is loaded.").set_function(lambda: self._tts is not None)
        self._model_memory = gauge("model_memory_bytes", "Memory that the process took to load the model.")
        gauge("gpu_memory_bytes", "GPU memory reserved by torch.").set_function(gpu_memory_bytes)

    @property
    def ready(self) -> bool:
        """Return whether a request would be served; an idle model is loaded again for it."""
        return self.state in ("ready", "idle")

    @property
    def occupancy(self) -> Occupancy:
        if self._tts is None:
            return Occupancy(waiting=0, speaking=0, slots=self.settings.slots or 0)
        return self._tts.occupancy

    async def start(self) -> None:
        """Load and warm up the engine; `ready` afterwards."""
        try:
            await self._engine()
        except Exception as error:
            self.failure = error
            raise
        if self.settings.keep_alive >= 0 and self._given_tts is None:
            self._idle_task = asyncio.create_task(self._unload_when_idle())

    async def drain(self, grace_s: float = 0.0) -> int:
        """Refuse new requests, wait for running ones until grace_s after the first call, and count the rest."""
        self.state, self._stopping_since_s = "stopping", self._stopping_since_s or time.monotonic()
        deadline_s = self._stopping_since_s + grace_s
        while (self._open_streams or self.open_turns) and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        return max(len(self._open_streams), len(self.open_turns))

    async def stop(self, grace_s: float = 0.0) -> None:
        """Wait for running requests, cancel the rest, and close the engine."""
        await self.drain(grace_s)
        if self._idle_task is not None:
            self._idle_task.cancel()
        for stream in list(self._open_streams):
            stream.cancel()
        if self._tts is not None and self._given_tts is None:
            await self._in_thread(self._tts.close)
        self._tts = None
        await self._in_thread(self.tracing.close)
        for pool in (self._threads, self._encoder_threads):
            pool.shutdown(wait=False, cancel_futures=True)

    async def open(self, text: str, *, voice: VoiceSpec = None, **request: Any) -> SpeechStream:
        """Queue a text for synthesis. The arguments are those of `TTS.open`; a voice may be an alias or a blend."""
        self.check_length(len(text))
        request["lexicon"] = self._merged_lexicon(request)
        stream = await self._open(SpeechStream, self._open_text, text, voice, request, chars=len(text))
        self.metrics.characters.inc(len(text))
        return stream

    async def session(self, *, voice: VoiceSpec = None, **request: Any) -> LiveSpeechStream:
        """Open a stream whose text is pushed as it is written. The arguments are those of `TTS.session`."""
        request["lexicon"] = self._merged_lexicon(request)
        return await self._open(LiveSpeechStream, self._open_live, voice, request)

    async def convert(
        self, recording: bytes | tuple[Samples, int], *, voice: VoiceSpec = None, seed: int | None = None
    ) -> SpeechStream:
        """Queue a recording for conversion to a voice. It is tokenized first, one recording at a time."""
        async with self._upload():
            return await self._open(SpeechStream, self._open_conversion, recording, voice, seed)

    def _open_text(self, tts: TTS, text: str, voice: VoiceSpec, request: dict[str, Any]) -> Session:
        speaker = self._voices.resolve(voice, tts)
        return tts.open(text, voice=speaker, ssml_voices=self._voices.by_name(tts), **request)

    def _open_live(self, tts: TTS, voice: VoiceSpec, request: dict[str, Any]) -> LiveSession:
        speaker = self._voices.resolve(voice, tts)
        return tts.session(voice=speaker, ssml_voices=self._voices.by_name(tts), **request)

    def _open_conversion(
        self, tts: TTS, recording: bytes | tuple[Samples, int], voice: VoiceSpec, seed: int | None
    ) -> Session:
        return tts.converter.submit(recording, voice=self._voices.resolve(voice, tts), seed=seed)

    @contextlib.asynccontextmanager
    async def _upload(self) -> AsyncIterator[None]:
        """Wait for a turn: each uploaded clip takes a core, and memory while it waits."""
        if self._pending_uploads >= MAX_PENDING_UPLOADS:
            raise QueueFull("too many uploads are waiting", allowed=f"at most {MAX_PENDING_UPLOADS}")
        self._pending_uploads += 1
        try:
            async with self._upload_lock:
                yield
        finally:
            self._pending_uploads -= 1

    async def process_upload(self, act: Callable[..., Result], *args: Any) -> Result:
        """Call `act` in a thread when it is this upload's turn; raise QueueFull if too many wait."""
        async with self._upload():
            return await self._in_thread(act, *args)

    def _merged_lexicon(self, request: Mapping[str, Any]) -> Lexicon:
        return self._lexicon.merged(open_lexicon(request.get("lexicon")))

    def check_length(self, chars: int) -> None:
        """Raise TextTooLong if a text of so many characters is too long for one request."""
        if chars > self.settings.max_text_chars:
            raise TextTooLong(
                "the text is too long for one request",
                got=f"{chars} characters",
                allowed=f"at most {self.settings.max_text_chars}",
                fix="Split it, or raise max_text_chars.",
            )

    def open_encoder(self, output: OutputFormat) -> AsyncEncoder:
        """Open an encoder for the audio of one request."""
        return AsyncEncoder(output, self._encoder_threads)

    async def check(self, *, voice: VoiceSpec = None, **request: Any) -> None:
        """Raise what `session` would raise, without opening one."""
        await self._with_engine(self._check, voice, request)

    def _check(self, tts: TTS, voice: VoiceSpec, request: dict[str, Any]) -> None:
        tts.check(voice=self._voices.resolve(voice, tts), **request)

    async def voices(self, of: str | None = None) -> list[VoiceInfo]:
        """Return the voices that the tenant may use; `of`: the own ones of another tenant, for an admin."""
        return await self._with_engine(partial(self._voices.entries, of=of))

    async def add_voice(
        self, name: str, clip: bytes | Callable[[], bytes], *, shared: bool = False
    ) -> VoiceInfo:
        """Create a voice from an uploaded clip. Uploads are processed one at a time: each takes a core.

        clip: the clip, or a function that makes it of several when it is its turn.
        """

        def add(tts: TTS) -> VoiceInfo:
            return self._voices.add(name, clip() if callable(clip) else clip, shared, tts)

        with self.tenants.admit():
            async with self._upload():
                return await self._with_engine(add)

    async def remove_voice(self, name: str, of: str | None = None) -> None:
        await self._with_engine(partial(self._voices.remove, name, of=of))

    async def share_voice(self, name: str, of: str | None = None) -> VoiceInfo:
        """Give an own voice of the admin, or `of` another tenant, to all tenants."""
        return await self._with_engine(partial(self._voices.share, name, of=of))

    async def resolve_voice(self, spec: VoiceSpec) -> Voice | None:
        """Return the voice for a name, an alias, {"id": …} or a blend; None is the model's own."""
        return await self._with_engine(partial(self._voices.resolve, spec))

    def _stream_closed(self, context: Any, stream: SpeechStream) -> None:
        self.tracing.record_speech(stream.metrics, context, outcome=stream.outcome, voice=stream.voice_name)
        stream.tenant_request.end(stream.metrics.audio_seconds)
        self._open_streams.discard(stream)
        self.metrics.active -= 1
        self._last_used_s = time.monotonic()

    async def _open(
        self,
        stream_class: Callable[[AnySession, ServerMetrics, OnClose, TenantRequest], AnyStream],
        open_request: Callable[..., AnySession],
        *arguments: Any,
        chars: int = 0,
    ) -> AnyStream:
        """Open a request by a method that takes the engine and these arguments, and the stream that reads it."""
        self._check_load_queue()
        tenant_request = self.tenants.admit(chars)
        self.metrics.active += 1
        self._opening += 1
        try:
            session = await open_session(self._with_engine(open_request, *arguments))
        except BaseException as error:
            self.metrics.active -= 1
            tenant_request.fail(error)
            raise
        finally:
            self._opening -= 1
        context = self.tracing.current()
        closed = partial(self._stream_closed, context)
        stream = stream_class(session, self.metrics, closed, tenant_request)
        self._open_streams.add(stream)
        return stream

    def _check_load_queue(self) -> None:
        """Raise QueueFull if as many requests wait for the model as its slots and its queue will take."""
        limit = self._slots + self.settings.max_queue
        if self._tts is not None or self._opening < limit:
            return
        error = QueueFull(
            "the model is being loaded, and too many requests wait for it", allowed=f"at most {limit}"
        )
        error.position = self._opening + 1
        if self._load_s is not None:
            error.retry_after_s = self._load_began_s + self._load_s - time.monotonic()
        raise error

    async def _with_engine(self, act: Callable[..., Result], *arguments: Any) -> Result:
        """Call `act` with the engine and these arguments in a thread; the engine is not unloaded meanwhile."""
        self._pending_calls += 1
        try:
            tts = await self._engine()
            try:
                return await self._in_thread(act, tts, *arguments)
            except EngineFault as fault:  # if the engine's thread has died, try once more with a new engine
                if not fault.engine_ended or self._given_tts is not None or self.state == "stopping":
                    raise
                if self._tts is tts:  # otherwise a concurrent request has replaced it already
                    log.error("the engine has died and is loaded again")
                    self._tts = None
                return await self._in_thread(act, await self._engine(), *arguments)
        finally:
            self._pending_calls -= 1
            self._last_used_s = time.monotonic()

    async def _engine(self) -> TTS:
        if self.state == "stopping":
            raise EngineFault("the server is shutting down", fix="Try again soon.")
        async with self._load_lock:
            if self._tts is None or self.state in ("cold", "failed"):
                self.state, self._load_began_s = "loading", time.monotonic()
                before_bytes = resident_bytes()
                try:
                    with raising_memory_full():
                        tts = self._given_tts
                        if tts is None:
                            tts = await self._in_thread(model_loading.load_engine, self.settings)
                        await self._in_thread(model_loading.warm_up, tts, self._voices.registry)
                except BaseException:
                    self.state = "failed"
                    raise
                self.model = ModelCard.describe(tts)
                self._tts, self.state = tts, "ready"
                self._last_used_s = time.monotonic()
                self._load_s = self._last_used_s - self._load_began_s
                self._slots = tts.occupancy.slots
                self._model_memory.set(max(0, resident_bytes() - before_bytes))
                log.info("ready", extra={"model": tts.name, "load_s": round(self._load_s, 3)})
            return self._tts

    async def _unload_when_idle(self) -> None:
        keep_s = self.settings.keep_alive
        while True:
            idle_s = time.monotonic() - self._last_used_s
            busy = self._open_streams or self._pending_calls or self._load_lock.locked()
            if self._tts is not None and not busy and idle_s >= keep_s:
                # A request that arrives now loads it again, but not beside this one.
                async with self._load_lock:
                    tts, self._tts = self._tts, None
                    self._model_memory.set(0)
                    await self._in_thread(tts.close)
                    del tts
                    await self._in_thread(model_loading.release_memory)
                    if self.state == "ready":
                        self.state = "idle"
                log.info("unloaded", extra={"idle_s": round(idle_s, 1)})
            await asyncio.sleep(max(0.05, min(keep_s - idle_s, 5.0)))

    async def _in_thread(self, act: Callable[..., Result], *args: Any) -> Result:
        """Call `act` in a thread, which gets the context of the request, and so its tenant."""
        run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._threads, run, act, *args)


async def get_service(connection: HTTPConnection) -> SpeechService:  # async: FastAPI runs others in threads
    service: SpeechService = connection.app.state.service
    return service


Service = Annotated[SpeechService, Depends(get_service)]
