"""Wyoming: the TCP protocol by which Home Assistant speaks, over the same engine as everything else.

    describe → info · synthesize → audio-start, audio-chunk…, audio-stop
    synthesize-start, -chunk…, -stop → the same, while the text still comes, then synthesize-stopped

The protocol has no password, so it listens on this machine only, unless told otherwise.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from nightingale.errors import ConfigError, NightingaleError
from nightingale.server.speaker import Speaker
from nightingale.server.turn import ListenerGone, Turn
from nightingale.server.wyoming_wire import MAX_LINE_BYTES, describe, read_event, text_of, wyoming_address
from nightingale.types import AudioChunk

if TYPE_CHECKING:
    from wyoming.event import Event, Eventable

MAX_CLIENTS: Final = 128
MAX_PENDING: Final = 4
"""Requests of one client that may wait behind each other."""
PATIENCE_S: Final = 30.0
SEND_BUFFER_BYTES: Final = 1 << 17
SILENT_S: Final = 600.0
"""A client that says nothing and hears nothing for so long is let go."""


@asynccontextmanager
async def wyoming_server(
    speaker: Speaker, uri: str, *, insecure: bool = False, max_chars: int = 100_000
) -> AsyncIterator[asyncio.Server]:
    """Serve while the context is open."""
    host, port = wyoming_address(uri, insecure=insecure)
    clients: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(clients) >= MAX_CLIENTS:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        clients.add(task)
        try:
            await Client(speaker, reader, writer, max_chars=max_chars).run()
        except asyncio.CancelledError:
            pass  # we are closing; asyncio.streams would log it as an error
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


class Client:
    """One connection, from hello to goodbye."""

    def __init__(
        self, speaker: Speaker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, max_chars: int
    ) -> None:
        self._speaker, self._reader, self._writer = speaker, reader, writer
        self._max_chars = max_chars
        self._turns: list[Turn] = []
        """Those not yet over, in order."""
        self._streaming: Turn | None = None
        """The turn whose text still comes."""

    async def run(self) -> None:
        peer = self._writer.get_extra_info("socket")
        if peer is not None:
            # A peer whose cable was cut is noticed by the kernel. A slow one is noticed by us, if the kernel
            # does not swallow half a minute of sound before it says that it is full.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        try:
            while (event := await self._next()) is not None:
                await self._answer(event)
        except (ListenerGone, ConnectionError):
            pass
        except NightingaleError as error:
            await self._complain(error)
        finally:
            for turn in self._turns:
                await turn.drop()
            self._writer.transport.abort() if self._turns else self._writer.close()

    async def _next(self) -> Event | None:
        while True:
            try:
                return await asyncio.wait_for(read_event(self._reader), SILENT_S)
            except TimeoutError:
                if not self._turns:
                    return None

    async def _answer(self, event: Event) -> None:
        from wyoming.info import Describe
        from wyoming.ping import Ping, Pong
        from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop

        if Describe.is_type(event.type):
            await self._write(describe(await self._speaker.voices()))
        elif Ping.is_type(event.type):
            await self._write(Pong(text=event.data.get("text")))
        elif SynthesizeStart.is_type(event.type):
            if self._streaming is not None:
                self._streaming.cancel()
            self._streaming = self._open(event.data, streaming=True)
        elif SynthesizeChunk.is_type(event.type):
            if self._streaming is not None:
                await self._streaming.push(text_of(event))
        elif SynthesizeStop.is_type(event.type):
            if self._streaming is not None:
                self._streaming.end()
            self._streaming = None
        elif Synthesize.is_type(event.type) and self._streaming is None:
            # While text is streaming, the whole of it comes once more, for servers that cannot stream.
            turn = self._open(event.data, streaming=False)
            await turn.push(text_of(event))
            turn.end()

    def _open(self, data: dict[str, Any], *, streaming: bool) -> Turn:
        self._turns = [turn for turn in self._turns if not turn.finished]
        if len(self._turns) >= MAX_PENDING:
            raise ConfigError(
                "too many requests on one connection",
                got=f"{len(self._turns)} not yet answered",
                allowed=f"at most {MAX_PENDING}",
                fix="Wait for audio-stop before the next.",
            )
        voice = data.get("voice")
        voice = voice if isinstance(voice, dict) else {}
        language = voice.get("language")
        started = False

        async def heard(chunk: AudioChunk) -> None:
            nonlocal started
            if not started:
                started = True
                await self._start(chunk.sample_rate_hz)
            await self._chunk(chunk)

        async def over(turn: Turn) -> None:
            if turn.error is not None:
                # Home Assistant does not know `error` here; that the connection ends, it does know.
                await self._complain(turn.error)
                self._reader.feed_eof()
                return
            if not started:
                await self._start(self._speaker.sample_rate_hz)
            await self._stop(streaming=streaming)

        turn = Turn(
            self._speaker,
            {
                "voice": voice.get("name"),
                "language": None
                if language is None
                else str(language).replace("_", "-").split("-")[0].lower(),
            },
            heard=heard,
            over=over,
            max_chars=self._max_chars,
            after=self._turns[-1] if self._turns else None,
        )
        self._turns.append(turn)
        return turn

    async def _start(self, rate_hz: int) -> None:
        from wyoming.audio import AudioStart

        await self._write(AudioStart(rate=rate_hz, width=2, channels=1))

    async def _chunk(self, chunk: AudioChunk) -> None:
        from wyoming.audio import AudioChunk as WyomingChunk

        await self._write(WyomingChunk(rate=chunk.sample_rate_hz, width=2, channels=1, audio=chunk.pcm16))

    async def _stop(self, *, streaming: bool) -> None:
        from wyoming.audio import AudioStop
        from wyoming.tts import SynthesizeStopped

        await self._write(AudioStop())
        if streaming:
            await self._write(SynthesizeStopped())

    async def _complain(self, error: NightingaleError) -> None:
        from wyoming.error import Error

        try:
            await self._write(Error(text=str(error), code=type(error).__name__))
        except ListenerGone:
            return

    async def _write(self, event: Eventable) -> None:
        from wyoming.event import async_write_event

        try:
            await asyncio.wait_for(async_write_event(event.event(), self._writer), PATIENCE_S)
        except (TimeoutError, OSError) as error:
            self._writer.transport.abort()
            raise ListenerGone from error
