"""LiveKit's TTS plugins, as an agent uses them: OpenAI's with SSE, ElevenLabs' with contexts."""

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


def within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
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


async def spoken(stream: Any) -> tuple[float, int]:
    """(seconds, sample rate) of what an agent would have played."""
    seconds, rate = 0.0, 0
    async for event in stream:
        seconds, rate = seconds + event.frame.duration, event.frame.sample_rate
    return seconds, rate


@pytest.mark.parametrize("model", ["gpt-4o-mini-tts", "tts-1"])
def test_the_openai_plugin_speaks(server: LiveServer, model: str) -> None:
    """With gpt-4o-mini-tts it asks for server-sent events, with tts-1 for plain audio."""

    async def work() -> None:
        tts = openai.TTS(model=model, voice="ash", base_url=f"{server.http}/v1", api_key="none")
        async with tts.synthesize(TEXT) as stream:
            seconds, rate = await spoken(stream)
        assert seconds > 1
        assert rate == 24000
        await tts.aclose()

    within(30, work())


@pytest.mark.parametrize("encoding", [None, "pcm_24000", "pcm_16000", "mp3_44100_128"])
def test_the_elevenlabs_plugin_streams_tokens_to_speech(server: LiveServer, encoding: str | None) -> None:
    async def work() -> None:
        options = {} if encoding is None else {"encoding": encoding}
        async with plugin(server, **options) as tts:
            for _ in range(2):  # the second turn reuses the connection
                async with tts.stream() as stream:
                    for word in TEXT.split(" "):
                        stream.push_text(word + " ")
                    stream.end_input()
                    seconds, rate = await spoken(stream)
                assert seconds > 1
                assert rate == int((encoding or "mp3_22050_32").split("_")[1])

    within(30, work())


def test_the_elevenlabs_plugin_without_auto_mode(server: LiveServer) -> None:
    async def work() -> None:
        async with plugin(server, auto_mode=False, encoding="pcm_24000") as tts, tts.stream() as stream:
            for word in TEXT.split(" "):
                stream.push_text(word + " ")
            stream.end_input()
            assert (await spoken(stream))[0] > 1

    within(30, work())


def test_three_streams_of_one_connection_at_once(server: LiveServer) -> None:
    async def work() -> None:
        async with plugin(server, encoding="pcm_24000") as tts:

            async def one() -> float:
                async with tts.stream() as stream:
                    stream.push_text(TEXT)
                    stream.end_input()
                    return (await spoken(stream))[0]

            lengths = await asyncio.gather(one(), one(), one())
            assert min(lengths) > 1

    within(30, work())


def test_an_interruption_stops_the_engine(server: LiveServer) -> None:
    def cancelled() -> float:
        return float(server.speaker.meter.cancelled.collect()[0].samples[0].value)

    before = cancelled()

    async def work() -> None:
        async with plugin(server, encoding="pcm_24000", auto_mode=False) as tts:
            for _ in range(8):  # more often than ElevenLabs has contexts
                stream = tts.stream()
                stream.push_text("This is one of very many sentences that nobody will listen to. " * 20)
                await anext(aiter(stream))
                await stream.aclose()
            async with tts.stream() as stream:
                stream.push_text("Yes?")
                stream.end_input()
                assert (await spoken(stream))[0] > 0
        assert cancelled() == before + 8

    within(60, work())


def test_synthesize_and_the_list_of_voices(server: LiveServer) -> None:
    async def work() -> None:
        async with plugin(server) as tts:
            async with tts.synthesize(TEXT) as stream:
                assert (await spoken(stream))[0] > 1
            assert [voice.id for voice in await tts.list_voices()] == ["noise"]

    within(30, work())


def test_an_unknown_voice_is_an_error_at_once(server: LiveServer) -> None:
    async def work() -> None:
        async with aiohttp.ClientSession() as session:
            tts = elevenlabs.TTS(
                voice_id="nobody", base_url=f"{server.http}/v1", api_key="none", http_session=session
            )
            options = agents.APIConnectOptions(max_retry=0, timeout=5)
            async with tts.stream(conn_options=options) as stream:
                stream.push_text(TEXT)
                stream.end_input()
                with pytest.raises(agents.APIStatusError) as caught:
                    await spoken(stream)
            assert caught.value.status_code == 400
            await tts.aclose()

    within(30, work())
