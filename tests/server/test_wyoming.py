"""Wyoming with its own client: what Home Assistant uses, and isolation from broken clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from live_server import EndlessService, free_port, live_server

from nightingale import TTS
from nightingale.errors import ConfigError
from nightingale.server.listen_socket import parse_wyoming
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.settings import ServerSettings

pytest.importorskip("wyoming")
from wyoming.audio import AudioChunk, AudioStart
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeVoice,
)

from nightingale.server.wyoming import wyoming_server
from nightingale.server.wyoming.wyoming_server import MAX_EXTRA_BYTES

LONG = "This is one of very many sentences that are only here to make the text long. " * 40


@pytest.fixture
def service(brief: TTS) -> SpeechService:
    return SpeechService(ServerSettings(), brief)


def run(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, seconds))


@asynccontextmanager
async def serving(service: SpeechService) -> AsyncIterator[int]:
    await service.start()
    try:
        async with wyoming_server.serve_wyoming(service, "tcp://127.0.0.1:0") as server:
            yield server.sockets[0].getsockname()[1]
    finally:
        await service.stop()


async def until(client: AsyncTcpClient, kind: str) -> list[Event]:
    events = []
    while True:
        event = await client.read_event()
        assert event is not None, f"disconnected after {[event.type for event in events]}"
        events.append(event)
        if event.type == kind:
            return events


async def say(port: int, text: str) -> bytes:
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(Synthesize(text=text).event())
        events = await until(client, "audio-stop")
    return b"".join(AudioChunk.from_event(e).audio for e in events if AudioChunk.is_type(e.type))


def test_server_describes_its_voices_and_streaming(service: SpeechService) -> None:
    async def work() -> None:
        async with (
            serving(service) as port,
            AsyncTcpClient("127.0.0.1", port) as client,
        ):
            await client.write_event(Describe().event())
            info = Info.from_event((await until(client, "info"))[-1])
            assert info.tts[0].supports_synthesize_streaming
            assert [voice.name for voice in info.tts[0].voices] == ["noise"]
            assert "en" in info.tts[0].voices[0].languages

    run(20, work())


def test_wyoming_is_served_next_to_http(brief: TTS) -> None:
    port = free_port()
    with live_server(brief, wyoming=f"tcp://127.0.0.1:{port}"):
        assert len(asyncio.run(asyncio.wait_for(say(port, "Hello."), 10))) > 1000


def test_text_becomes_one_sequence_of_audio(service: SpeechService) -> None:
    async def work() -> None:
        async with (
            serving(service) as port,
            AsyncTcpClient("127.0.0.1", port) as client,
        ):
            voice = SynthesizeVoice(name="noise")
            await client.write_event(Synthesize(text="Hello there.", voice=voice).event())
            events = await until(client, "audio-stop")
            start = AudioStart.from_event(events[0])
            assert (start.rate, start.width, start.channels) == (24000, 2, 1)
            assert {event.type for event in events[1:-1]} == {"audio-chunk"}
            assert sum(len(event.payload or b"") for event in events) > 1000

    run(20, work())


def test_streamed_text_is_spoken_before_it_ends_and_only_once(service: SpeechService) -> None:
    """Home Assistant also sends the whole text before the stop, for servers that cannot stream."""

    async def work() -> None:
        async with (
            serving(service) as port,
            AsyncTcpClient("127.0.0.1", port) as client,
        ):
            await client.write_event(SynthesizeStart().event())
            await client.write_event(SynthesizeChunk(text="Good morning, everyone, and welcome. And").event())
            assert (await until(client, "audio-chunk"))[0].type == "audio-start"
            await client.write_event(SynthesizeChunk(text=" goodbye.").event())
            await client.write_event(Synthesize(text="Good morning, everyone. And goodbye.").event())
            await client.write_event(SynthesizeStop().event())
            rest = [event.type for event in await until(client, "synthesize-stopped")]
            assert rest.count("audio-stop") == 1
            assert rest.count("audio-start") == 0
            assert rest[-2:] == ["audio-stop", "synthesize-stopped"]
            # The same connection serves the next request.
            await client.write_event(Synthesize(text="Again.").event())
            await until(client, "audio-stop")

    run(20, work())


def test_empty_text_is_answered_without_audio(service: SpeechService) -> None:
    async def work() -> None:
        async with (
            serving(service) as port,
            AsyncTcpClient("127.0.0.1", port) as client,
        ):
            await client.write_event(Synthesize(text=" ").event())
            assert [e.type for e in await until(client, "audio-stop")] == ["audio-start", "audio-stop"]

    run(20, work())


def test_unknown_voice_is_an_error_and_closes_the_connection(service: SpeechService) -> None:
    """Home Assistant waits for audio or for the end of the connection; it does not read errors."""

    async def work() -> None:
        async with (
            serving(service) as port,
            AsyncTcpClient("127.0.0.1", port) as client,
        ):
            await client.write_event(Synthesize(text="Hello.", voice=SynthesizeVoice(name="missing")).event())
            error = Error.from_event((await until(client, "error"))[-1])
            assert error.code == "VoiceNotFound"
            assert "missing" in error.text
            assert await client.read_event() is None

    run(20, work())


BROKEN = {
    "not json": b"GET / HTTP/1.1\r\n\r\n",
    "not an object": b"[]\n",
    "no type": b"{}\n",
    "binary": bytes(range(256)) + b"\n",
    "a line over the limit": b"{" + b"a" * 200_000,
    "less data than announced": b'{"type":"synthesize","data_length":100}\n{}',
    "data over the limit": b'{"type":"synthesize","data_length":%d}\n' % (MAX_EXTRA_BYTES + 1),
    "a negative length": b'{"type":"synthesize","data_length":-1}\n',
    "a length that is a word": b'{"type":"synthesize","payload_length":"x"}\n',
    "data that is no object": b'{"type":"synthesize","data_length":2}\n[]',
    "no text": b'{"type":"synthesize","data":{"voice":7}}\n',
    "deep": b"[" * 50_000 + b"\n",
}


def test_malformed_event_closes_its_own_connection_only(service: SpeechService) -> None:
    async def work() -> None:
        async with serving(service) as port:
            for name, event in BROKEN.items():
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(event)
                writer.write_eof()
                while line := await reader.read(1 << 16):
                    assert line.startswith(b'{"type": "error"'), name
                writer.close()
            assert len(await say(port, "Hello.")) > 1000

    run(30, work())


def test_disconnect_frees_the_engine(service: SpeechService) -> None:
    async def work() -> None:
        async with serving(service) as port:
            client = AsyncTcpClient("127.0.0.1", port)
            await client.connect()
            await client.write_event(Synthesize(text=LONG).event())
            await until(client, "audio-chunk")
            # Reset the connection, as when the process of a client is killed.
            raw = client._writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client._writer.transport.abort()
            while service.metrics.active or service.occupancy.speaking:
                await asyncio.sleep(0.01)
            assert service.metrics.cancelled.collect()[0].samples[0].value == 1

    run(20, work())


def test_stalled_client_is_dropped_and_does_not_affect_others(
    brief: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wyoming_server, "SEND_TIMEOUT_S", 0.3)
    service = EndlessService(brief, endless=1)

    async def work() -> None:
        async with serving(service) as port:
            with socket.socket() as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.connect(("127.0.0.1", port))
                slow.sendall(b'{"type":"synthesize","data":{"text":"Go on."}}\n')
                while not service.streams:
                    await asyncio.sleep(0.01)
                assert len(await say(port, "Hello.")) > 1000
                while not service.streams[0].cancelled:
                    await asyncio.sleep(0.01)
                assert service.streams[0].chunks_read < 100

    run(20, work())


def test_idle_client_is_disconnected(service: SpeechService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wyoming_server, "IDLE_TIMEOUT_S", 0.2)

    async def work() -> None:
        async with (
            serving(service) as port,
            AsyncTcpClient("127.0.0.1", port) as client,
        ):
            assert await client.read_event() is None

    run(10, work())


def test_number_of_clients_is_limited(service: SpeechService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wyoming_server, "MAX_CLIENTS", 1)

    async def work() -> None:
        async with (
            serving(service) as port,
            AsyncTcpClient("127.0.0.1", port) as client,
        ):
            await client.write_event(Describe().event())
            await until(client, "info")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            await client.write_event(Describe().event())
            await until(client, "info")

    run(10, work())


@pytest.mark.parametrize(
    "uri", ["127.0.0.1:10200", "tcp://", "unix:///tmp/x", "tcp://h:x", "tcp://127.0.0.1/x"]
)
def test_invalid_address_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="not an address"):
        parse_wyoming(uri)


def test_public_address_needs_insecure() -> None:
    assert parse_wyoming("tcp://127.0.0.1") == ("127.0.0.1", 10200)
    with pytest.raises(ConfigError, match="--insecure"):
        parse_wyoming("tcp://0.0.0.0:10200")
    assert parse_wyoming("tcp://0.0.0.0:10200", insecure=True) == ("0.0.0.0", 10200)
