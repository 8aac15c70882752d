"""LiveKit's TTS plugins: OpenAI's with server-sent events, ElevenLabs' with contexts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from live_server import LiveServer

pytestmark = pytest.mark.contract
aiohttp = pytest.importorskip("aiohttp")
agents = pytest.importorskip("livekit.agents")
elevenlabs = pytest.importorskip("livekit.plugins.elevenlabs")
openai = pytest.importorskip("livekit.plugins.openai")

TEXT = "Good morning, everyone. Your train leaves in ten minutes. Shall I call a taxi?"


def run(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, seconds))


@asynccontextmanager
async def plugin(server: LiveServer, **options: Any) -> AsyncIterator[Any]:
    async with aiohttp.ClientSession() as session:
        tts = elevenlabs.TTS(
            voice_id="noise", base_url=f"{server.http}/v1", api_key="none", http_session=session, **options
        )
        try:
            yield tts
        finally:
            await tts.aclose()


async def received(stream: Any) -> tuple[float, int]:
    """Return (seconds, sample rate) of the audio."""
    seconds, rate = 0.0, 0
    async for event in stream:
        seconds, rate = seconds + event.frame.duration, event.frame.sample_rate
    return seconds, rate


@pytest.mark.parametrize("model", ["gpt-4o-mini-tts", "tts-1"])
def test_openai_plugin_speaks(server: LiveServer, model: str) -> None:
    """It uses server-sent events with gpt-4o-mini-tts, and plain audio with tts-1."""

    async def work() -> None:
        tts = openai.TTS(model=model, voice="ash", base_url=f"{server.http}/v1", api_key="none")
        async with tts.synthesize(TEXT) as stream:
            seconds, rate = await received(stream)
        assert seconds > 1
        assert rate == 24000
        await tts.aclose()

    run(30, work())


@pytest.mark.parametrize("encoding", [None, "pcm_24000", "pcm_16000", "mp3_44100_128"])
def test_elevenlabs_plugin_streams_tokens_to_speech(server: LiveServer, encoding: str | None) -> None:
    async def work() -> None:
        options = {} if encoding is None else {"encoding": encoding}
        async with plugin(server, **options) as tts:
            for _ in range(2):  # the second turn reuses the connection
                async with tts.stream() as stream:
                    for word in TEXT.split(" "):
                        stream.push_text(word + " ")
                    stream.end_input()
                    seconds, rate = await received(stream)
                assert seconds > 1
                assert rate == int((encoding or "mp3_22050_32").split("_")[1])

    run(30, work())


def test_elevenlabs_plugin_without_auto_mode(server: LiveServer) -> None:
    async def work() -> None:
        async with plugin(server, auto_mode=False, encoding="pcm_24000") as tts, tts.stream() as stream:
            for word in TEXT.split(" "):
                stream.push_text(word + " ")
            stream.end_input()
            assert (await received(stream))[0] > 1

    run(30, work())


def test_three_concurrent_streams_of_one_connection(server: LiveServer) -> None:
    async def work() -> None:
        async with plugin(server, encoding="pcm_24000") as tts:

            async def one() -> float:
                async with tts.stream() as stream:
                    stream.push_text(TEXT)
                    stream.end_input()
                    return (await received(stream))[0]

            lengths = await asyncio.gather(one(), one(), one())
            assert min(lengths) > 1

    run(30, work())


def test_interruption_stops_the_engine(server: LiveServer) -> None:
    before = server.cancelled()

    async def work() -> None:
        async with plugin(server, encoding="pcm_24000", auto_mode=False) as tts:
            for _ in range(8):  # more than ElevenLabs' limit of contexts
                stream = tts.stream()
                stream.push_text(
                    "This is one of very many sentences that are only here to make the text long. " * 20
                )
                await anext(aiter(stream))
                await stream.aclose()
            async with tts.stream() as stream:
                stream.push_text("Yes?")
                stream.end_input()
                assert (await received(stream))[0] > 0
        assert server.cancelled() == before + 8

    run(60, work())


def test_synthesize_and_the_list_of_voices(server: LiveServer) -> None:
    async def work() -> None:
        async with plugin(server) as tts:
            async with tts.synthesize(TEXT) as stream:
                assert (await received(stream))[0] > 1
            assert [voice.id for voice in await tts.list_voices()] == ["noise"]

    run(30, work())


def test_unknown_voice_is_an_error_at_once(server: LiveServer) -> None:
    async def work() -> None:
        async with aiohttp.ClientSession() as session:
            tts = elevenlabs.TTS(
                voice_id="missing", base_url=f"{server.http}/v1", api_key="none", http_session=session
            )
            options = agents.APIConnectOptions(max_retry=0, timeout=5)
            async with tts.stream(conn_options=options) as stream:
                stream.push_text(TEXT)
                stream.end_input()
                with pytest.raises(agents.APIStatusError) as caught:
                    await received(stream)
            assert caught.value.status_code == 400
            await tts.aclose()

    run(30, work())
