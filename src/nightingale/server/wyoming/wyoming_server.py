"""The Wyoming server: the TCP protocol of Home Assistant, over the same engine as the other protocols.

describe → info · synthesize → audio-start, audio-chunk…, audio-stop
synthesize-start, -chunk…, -stop → the same while the text still arrives, then synthesize-stopped
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from wyoming.audio import AudioChunk as AudioChunkEvent
from wyoming.audio import AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, Eventable, async_write_event
from wyoming.info import Describe
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped

from nightingale.errors import NightingaleError
from nightingale.server.listen_socket import SEND_BUFFER_BYTES
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.service.speech_turns import ClientGone, SpeechTurn, TurnQueue, check_text
from nightingale.server.wyoming.wyoming_address import parse_address
from nightingale.server.wyoming.wyoming_events import MAX_LINE_BYTES, describe, read_event
from nightingale.types import AudioChunk

MAX_CLIENTS: Final = 128
SEND_TIMEOUT_S: Final = 30.0
IDLE_TIMEOUT_S: Final = 600.0
"""A connection without events and without audio to send is closed after this long."""


@asynccontextmanager
async def serve_wyoming(
    service: SpeechService, uri: str, *, insecure: bool = False, max_chars: int = 100_000
) -> AsyncIterator[asyncio.Server]:
    """Serve Wyoming while the context is open."""
    host, port = parse_address(uri, insecure=insecure)
    clients: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(clients) >= MAX_CLIENTS:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        clients.add(task)
        try:
            await WyomingConnection(service, reader, writer, max_chars=max_chars).run()
        except asyncio.CancelledError:
            pass  # the server is closing; asyncio.streams would log it as an error
        finally:
            clients.discard(task)

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
        self,
        service: SpeechService,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        max_chars: int,
    ) -> None:
        self._service, self._reader, self._writer = service, reader, writer
        self._turns = TurnQueue(service, max_chars)
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
            await self._send_error(error)
        finally:
            await self._turns.drop()
            self._writer.transport.abort() if self._turns.turns else self._writer.close()

    async def _next(self) -> Event | None:
        while True:
            try:
                return await asyncio.wait_for(read_event(self._reader), IDLE_TIMEOUT_S)
            except TimeoutError:
                if not self._turns.turns:
                    return None

    async def _handle(self, event: Event) -> None:
        if Describe.is_type(event.type):
            await self._send(describe(await self._service.voices()))
        elif Ping.is_type(event.type):
            await self._send(Pong(text=event.data.get("text")))
        elif SynthesizeStart.is_type(event.type):
            if self._streaming is not None:
                self._streaming.cancel()
            self._streaming = self._open(event.data, streaming=True)
        elif SynthesizeChunk.is_type(event.type):
            if self._streaming is not None:
                await self._streaming.push(check_text(event.data.get("text")))
        elif SynthesizeStop.is_type(event.type):
            if self._streaming is not None:
                self._streaming.end()
            self._streaming = None
        elif Synthesize.is_type(event.type) and self._streaming is None:
            # During streaming, clients send the whole text, too, for servers that cannot stream.
            turn = self._open(event.data, streaming=False)
            await turn.push(check_text(event.data.get("text")))
            turn.end()

    def _open(self, data: dict[str, Any], *, streaming: bool) -> SpeechTurn:
        voice = data.get("voice")
        voice = voice if isinstance(voice, dict) else {}
        language = voice.get("language")
        if language is not None:
            language = str(language).replace("_", "-").split("-")[0].lower()
        started = False

        async def on_audio(chunk: AudioChunk) -> None:
            nonlocal started
            rate_hz = chunk.sample_rate_hz
            if not started:
                started = True
                await self._send(AudioStart(rate=rate_hz, width=2, channels=1))
            await self._send(AudioChunkEvent(rate=rate_hz, width=2, channels=1, audio=chunk.pcm16))

        async def on_end(turn: SpeechTurn) -> None:
            if turn.error is not None:
                # Home Assistant ignores `error` here, but it notices the end of the connection.
                await self._send_error(turn.error)
                self._reader.feed_eof()
                return
            if not started:
                await self._send(AudioStart(rate=self._service.sample_rate_hz, width=2, channels=1))
            await self._send(AudioStop())
            if streaming:
                await self._send(SynthesizeStopped())

        return self._turns.open({"voice": voice.get("name"), "language": language}, on_audio, on_end)

    async def _send_error(self, error: NightingaleError) -> None:
        try:
            await self._send(Error(text=str(error), code=type(error).__name__))
        except ClientGone:
            return

    async def _send(self, event: Eventable) -> None:
        try:
            await asyncio.wait_for(async_write_event(event.event(), self._writer), SEND_TIMEOUT_S)
        except (TimeoutError, OSError) as error:
            self._writer.transport.abort()
            raise ClientGone from error
