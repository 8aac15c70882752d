"""Wyoming with its own client: what Home Assistant hears, and what a broken client cannot do to others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from live_server import Talker, free_port, live_server

from nightingale import TTS
from nightingale.errors import ConfigError
from nightingale.server import wyoming as wyoming_module
from nightingale.server.settings import Settings
from nightingale.server.speaker import Speaker
from nightingale.server.wyoming import wyoming_server
from nightingale.server.wyoming_wire import MAX_EXTRA_BYTES, wyoming_address

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

LONG = "This is one of very many sentences that nobody will ever listen to. " * 40


@pytest.fixture
def speaker(brief: TTS) -> Speaker:
    return Speaker(Settings(), brief)


def within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, seconds))


@asynccontextmanager
async def serving(speaker: Speaker) -> AsyncIterator[int]:
    await speaker.start()
    try:
        async with wyoming_server(speaker, "tcp://127.0.0.1:0") as server:
            yield server.sockets[0].getsockname()[1]
    finally:
        await speaker.stop()


async def until(client: AsyncTcpClient, kind: str) -> list[Event]:
    events = []
    while True:
        event = await client.read_event()
        assert event is not None, f"hung up after {[event.type for event in events]}"
        events.append(event)
        if event.type == kind:
            return events


async def say(port: int, text: str) -> bytes:
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(Synthesize(text=text).event())
        events = await until(client, "audio-stop")
    return b"".join(AudioChunk.from_event(e).audio for e in events if AudioChunk.is_type(e.type))


def test_it_describes_its_voices_and_that_it_can_stream(speaker: Speaker) -> None:
    async def work() -> None:
        async with (
            serving(speaker) as port,
            AsyncTcpClient("127.0.0.1", port) as client,
        ):
            await client.write_event(Describe().event())
            info = Info.from_event((await until(client, "info"))[-1])
            assert info.tts[0].supports_synthesize_streaming
            assert [voice.name for voice in info.tts[0].voices] == ["noise"]
            assert "en" in info.tts[0].voices[0].languages

    within(20, work())


def test_the_server_speaks_it_beside_http(brief: TTS) -> None:
    port = free_port()
    with live_server(brief, wyoming=f"tcp://127.0.0.1:{port}"):
        assert len(asyncio.run(asyncio.wait_for(say(port, "Hello."), 10))) > 1000


def test_a_text_becomes_one_run_of_audio(speaker: Speaker) -> None:
    async def work() -> None:
        async with (
            serving(speaker) as port,
            AsyncTcpClient("127.0.0.1", port) as client,
        ):
            voice = SynthesizeVoice(name="noise")
            await client.write_event(Synthesize(text="Hello there.", voice=voice).event())
            events = await until(client, "audio-stop")
            start = AudioStart.from_event(events[0])
            assert (start.rate, start.width, start.channels) == (24000, 2, 1)
            assert {event.type for event in events[1:-1]} == {"audio-chunk"}
            assert sum(len(event.payload or b"") for event in events) > 1000

    within(20, work())


def test_streamed_text_is_heard_before_it_ends_and_not_twice(speaker: Speaker) -> None:
    """Home Assistant sends the whole text once more before the stop, for servers that cannot stream."""

    async def work() -> None:
        async with (
            serving(speaker) as port,
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
            # The same connection serves the next.
            await client.write_event(Synthesize(text="Again.").event())
            await until(client, "audio-stop")

    within(20, work())


def test_an_empty_text_is_answered_with_silence(speaker: Speaker) -> None:
    async def work() -> None:
        async with (
            serving(speaker) as port,
            AsyncTcpClient("127.0.0.1", port) as client,
        ):
            await client.write_event(Synthesize(text=" ").event())
            assert [e.type for e in await until(client, "audio-stop")] == ["audio-start", "audio-stop"]

    within(20, work())


def test_an_unknown_voice_is_an_error_and_the_end_of_the_connection(speaker: Speaker) -> None:
    """Home Assistant waits for audio or for the end; it does not read errors."""

    async def work() -> None:
        async with (
            serving(speaker) as port,
            AsyncTcpClient("127.0.0.1", port) as client,
        ):
            await client.write_event(Synthesize(text="Hello.", voice=SynthesizeVoice(name="nobody")).event())
            error = Error.from_event((await until(client, "error"))[-1])
            assert error.code == "VoiceNotFound"
            assert "nobody" in error.text
            assert await client.read_event() is None

    within(20, work())


BROKEN = {
    "not json": b"GET / HTTP/1.1\r\n\r\n",
    "not an object": b"[]\n",
    "no type": b"{}\n",
    "binary": bytes(range(256)) + b"\n",
    "a line without end": b"{" + b"a" * 200_000,
    "more data than it has": b'{"type":"synthesize","data_length":100}\n{}',
    "data without measure": b'{"type":"synthesize","data_length":%d}\n' % (MAX_EXTRA_BYTES + 1),
    "a negative length": b'{"type":"synthesize","data_length":-1}\n',
    "a length that is a word": b'{"type":"synthesize","payload_length":"x"}\n',
    "data that is no object": b'{"type":"synthesize","data_length":2}\n[]',
    "no text": b'{"type":"synthesize","data":{"voice":7}}\n',
    "deep": b"[" * 50_000 + b"\n",
}


def test_a_malformed_event_ends_its_connection_and_no_other(speaker: Speaker) -> None:
    async def work() -> None:
        async with serving(speaker) as port:
            for name, letter in BROKEN.items():
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(letter)
                writer.write_eof()
                while line := await reader.read(1 << 16):
                    assert line.startswith(b'{"type": "error"'), name
                writer.close()
            assert len(await say(port, "Hello.")) > 1000

    within(30, work())


def test_whoever_hangs_up_frees_the_engine(speaker: Speaker) -> None:
    async def work() -> None:
        async with serving(speaker) as port:
            client = AsyncTcpClient("127.0.0.1", port)
            await client.connect()
            await client.write_event(Synthesize(text=LONG).event())
            await until(client, "audio-chunk")
            # As a process that is killed does: a reset, not a goodbye.
            raw = client._writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client._writer.transport.abort()
            while speaker.meter.active or speaker.occupancy.speaking:
                await asyncio.sleep(0.01)
            assert speaker.meter.cancelled.collect()[0].samples[0].value == 1

    within(20, work())


def test_whoever_does_not_read_is_let_go_and_costs_the_others_nothing(
    brief: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wyoming_module, "PATIENCE_S", 0.3)
    talker = Talker(brief, endless=1)

    async def work() -> None:
        async with serving(talker) as port:
            with socket.socket() as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.connect(("127.0.0.1", port))
                slow.sendall(b'{"type":"synthesize","data":{"text":"Go on."}}\n')
                while not talker.given:
                    await asyncio.sleep(0.01)
                assert len(await say(port, "Hello.")) > 1000
                while not talker.given[0].cancelled:
                    await asyncio.sleep(0.01)
                assert talker.given[0].taken < 100

    within(20, work())


def test_a_silent_client_is_let_go(speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wyoming_module, "SILENT_S", 0.2)

    async def work() -> None:
        async with (
            serving(speaker) as port,
            AsyncTcpClient("127.0.0.1", port) as client,
        ):
            assert await client.read_event() is None

    within(10, work())


def test_more_clients_than_there_is_room_for_are_turned_away(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wyoming_module, "MAX_CLIENTS", 1)

    async def work() -> None:
        async with (
            serving(speaker) as port,
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

    within(10, work())


@pytest.mark.parametrize(
    "uri", ["127.0.0.1:10200", "tcp://", "unix:///tmp/x", "tcp://h:x", "tcp://127.0.0.1/x"]
)
def test_an_address_must_be_an_address(uri: str) -> None:
    with pytest.raises(ConfigError, match="not an address"):
        wyoming_address(uri)


def test_others_may_only_come_in_if_that_is_meant() -> None:
    assert wyoming_address("tcp://127.0.0.1") == ("127.0.0.1", 10200)
    with pytest.raises(ConfigError, match="--insecure"):
        wyoming_address("tcp://0.0.0.0:10200")
    assert wyoming_address("tcp://0.0.0.0:10200", insecure=True) == ("0.0.0.0", 10200)
