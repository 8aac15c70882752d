"""The Wyoming server: the TCP protocol of Home Assistant, over the same engine as the other protocols.

describe → info · synthesize → audio-start, audio-chunk…, audio-stop
synthesize-start, -chunk…, -stop → the same while the text still arrives, then synthesize-stopped
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, Eventable, async_write_event
from wyoming.info import Attribution, Info, TtsProgram, TtsVoice
from wyoming.ping import Pong
from wyoming.tts import SynthesizeStopped

from nightingale import __version__
from nightingale.errors import NightingaleError
from nightingale.server.listen_socket import SEND_BUFFER_BYTES, parse_wyoming
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.service.speech_streams import OutputFormat, Timings
from nightingale.server.service.speech_turns import ClientGone, SpeechTurn, TurnQueue, check_text
from nightingale.server.service.voice_registry import VoiceInfo
from nightingale.server.tenants.tenant_registry import Access, acting_as

MAX_CLIENTS: Final = 128
MAX_LINE_BYTES: Final = 1 << 16
MAX_EXTRA_BYTES: Final = 1 << 20
"""Maximum length of an event's data and of its payload."""
SEND_TIMEOUT_S: Final = 30.0
IDLE_TIMEOUT_S: Final = 600.0
"""A connection without events and without audio to send is closed after this long."""


@asynccontextmanager
async def serve_wyoming(service: SpeechService, uri: str) -> AsyncIterator[asyncio.Server]:
    """Serve Wyoming while the context is open."""
    host, port = parse_wyoming(uri, insecure=service.settings.insecure)
    tenant = service.settings.wyoming_tenant
    clients: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(clients) >= MAX_CLIENTS:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        clients.add(task)
        task.add_done_callback(clients.discard)
        access = None if tenant is None else Access(tenant=tenant)
        # CancelledError: the server is closing; asyncio.streams would log an error.
        with suppress(asyncio.CancelledError), acting_as(access):
            await WyomingConnection(service, reader, writer).run()

    server = await asyncio.start_server(serve, host, port, limit=MAX_LINE_BYTES)
    try:
        yield server
    finally:
        server.close()
        for task in list(clients):
            task.cancel()
        if clients:
            await asyncio.wait(list(clients), timeout=5)


class WyomingConnection:
    """One client."""

    def __init__(
        self, service: SpeechService, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._service, self._reader, self._writer = service, reader, writer
        self._turns = TurnQueue()
        self._streaming: SpeechTurn | None = None
        """The turn whose text still arrives."""

    async def run(self) -> None:
        peer = self._writer.get_extra_info("socket")
        if peer is not None:
            # Keepalive detects a broken connection. The small buffer makes a stalled client noticeable before
            # the kernel has taken half a minute of audio.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        try:
            while (event := await self._next()) is not None:
                await self._handle(event)
        except (ClientGone, ConnectionError):
            pass
        except NightingaleError as error:
            await self.send_error(error)
        finally:
            await self._turns.drop()
            self._writer.transport.abort() if self._turns else self._writer.close()

    async def _next(self) -> Event | None:
        while True:
            try:
                return await asyncio.wait_for(read_event(self._reader), IDLE_TIMEOUT_S)
            except TimeoutError:
                if not self._turns:
                    return None

    async def _handle(self, event: Event) -> None:
        text = event.data.get("text")
        open_turn = partial(WyomingTurn, self, self._service, event.data.get("voice"))
        match event.type:
            case "describe":
                await self.send(describe(await self._service.voices()))
            case "ping":
                await self.send(Pong(text=text))
            case "synthesize-start":
                if self._streaming is not None:
                    self._streaming.cancel()
                self._streaming = self._turns.add(open_turn(streaming=True))
            case "synthesize-chunk" if self._streaming is not None:
                await self._streaming.push(check_text(text))
            case "synthesize-stop" if self._streaming is not None:
                self._streaming.end()
                self._streaming = None
            # During streaming, clients send the whole text, too, for servers that cannot stream.
            case "synthesize" if self._streaming is None:
                turn = self._turns.add(open_turn(streaming=False))
                await turn.push(check_text(text))
                turn.end()

    async def send_error(self, error: NightingaleError) -> None:
        """Send the error and end the connection: Home Assistant ignores `error`, but it notices the end."""
        with suppress(ClientGone):
            await self.send(Error(text=str(error), code=type(error).__name__))
        self._reader.feed_eof()

    async def send(self, event: Eventable) -> None:
        try:
            await asyncio.wait_for(async_write_event(event.event(), self._writer), SEND_TIMEOUT_S)
        except (TimeoutError, OSError) as error:
            self._writer.transport.abort()
            raise ClientGone from error


class WyomingTurn(SpeechTurn):
    """One text that is spoken to a client."""

    def __init__(
        self, connection: WyomingConnection, service: SpeechService, voice: Any, *, streaming: bool
    ) -> None:
        voice = voice if isinstance(voice, dict) else {}
        language = voice.get("language")
        if language is not None:
            language = str(language).replace("_", "-").split("-")[0].lower()
        request = {"voice": voice.get("name"), "language": language}
        super().__init__(service, request, OutputFormat("pcm", service.sample_rate_hz))
        self._connection, self._streaming = connection, streaming
        self._format = {"rate": service.sample_rate_hz, "width": 2, "channels": 1}

    async def send_start(self) -> None:
        await self._connection.send(AudioStart(**self._format))

    async def send_audio(self, timings: Timings, data: bytes) -> None:  # noqa: ARG002
        if data:
            await self._connection.send(AudioChunk(**self._format, audio=data))

    async def send_end(self) -> None:
        if self.error is not None:
            await self._connection.send_error(self.error)
            return
        if not self.has_started:
            await self.send_start()
        await self._connection.send(AudioStop())
        if self._streaming:
            await self._connection.send(SynthesizeStopped())


async def read_event(reader: asyncio.StreamReader) -> Event | None:
    """Return the next event, or None at the end or if it is malformed. wyoming's own reader has no limits."""
    try:
        head = json.loads(await reader.readline())
        kind, data = head["type"], head.get("data") or {}
        sizes = [head.get("data_length") or 0, head.get("payload_length") or 0]
        if not all(isinstance(size, int) and 0 <= size <= MAX_EXTRA_BYTES for size in sizes):
            return None
        if sizes[0]:
            data = {**data, **json.loads(await reader.readexactly(sizes[0]))}
        payload = await reader.readexactly(sizes[1]) if sizes[1] else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, EOFError):
        return None
    return Event(type=str(kind), data=data, payload=payload) if isinstance(data, dict) else None


def describe(voices: list[VoiceInfo]) -> Info:
    """Describe the server and its voices."""
    installed: dict[str, Any] = {"attribution": Attribution(name="Nightingale", url=""), "installed": True}
    program = TtsProgram(
        name="nightingale",
        description="Nightingale text to speech",
        version=__version__,
        voices=[
            TtsVoice(name=each.id, description=each.name, version=None, languages=each.languages, **installed)
            for each in voices
        ],
        supports_synthesize_streaming=True,
        **installed,
    )
    return Info(tts=[program])
