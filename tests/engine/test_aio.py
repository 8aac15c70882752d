"""The engine behind asyncio: reading audio without a thread for each reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from engine_helpers import is_drained

from nightingale import TTS, AsyncTTS
from nightingale.engine.aio import iter_chunks
from nightingale.errors import EngineFault

READERS = 24
LONG = "Good morning, and welcome back. Your train leaves in ten minutes. Shall I call a taxi?" * 5


@pytest.fixture
def tts(tts_with: Callable[..., TTS]) -> Iterator[TTS]:
    with tts_with(defaults={"max_new_tokens": 12}) as engine:
        yield engine


def test_say_stream_and_session_agree_with_their_synchronous_forms(tts: TTS) -> None:
    expected = tts.say("Hello there.", seed=1)

    async def run() -> None:
        engine = AsyncTTS(tts)
        assert (await engine.say("Hello there.", seed=1)).sha256 == expected.sha256
        chunks = [chunk.samples async for chunk in engine.stream("Hello there.", seed=1)]
        assert np.array_equal(np.concatenate(chunks), expected.samples)
        async with await engine.session(seed=1) as session:
            session.push("Hello there.")
            session.end()
            chunks = [chunk.samples async for chunk in session]
        assert np.array_equal(np.concatenate(chunks)[: len(expected.samples)], expected.samples)
        async with await engine.session(seed=1) as session:
            session.push(LONG)
        assert session._session.audio.cancelled
        both = await asyncio.gather(engine.say("One.", seed=1), engine.say("Two.", seed=2))
        assert [len(audio.samples) for audio in both] == [12 * 960] * 2

    asyncio.run(run())


def test_many_readers_need_no_threads(tts: TTS) -> None:
    """The loop has one thread: a reader that waited in it would block all others."""

    async def run() -> list[int]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        engine = AsyncTTS(tts)

        async def read(seed: int) -> int:
            return sum([len(chunk.samples) async for chunk in engine.stream("Hello there.", seed=seed)])

        return await asyncio.gather(*(read(seed) for seed in range(READERS)))

    assert asyncio.run(asyncio.wait_for(run(), 60)) == [12 * 960] * READERS


def test_take_never_waits(tts: TTS) -> None:
    session = tts.session(seed=1)
    assert session.audio.take() is None
    session.push("Hello there. ")
    session.end()
    assert len(list(session)) > 0
    with pytest.raises(EOFError):
        session.audio.take()


def test_a_listener_is_notified_of_audio_that_is_there_already(tts: TTS) -> None:
    session = tts.open("Hello there.", seed=1)
    list(session.chunks())
    notified: list[bool] = []
    session.listen(lambda: notified.append(True))
    assert notified == [True]


def test_closing_the_engine_raises_in_the_reader(tts_with: Callable[..., TTS]) -> None:
    tts = tts_with(defaults={"max_new_tokens": 100})

    async def run() -> None:
        session = tts.open("Hello there. " * 80, seed=1)
        chunks = iter_chunks(session)
        await anext(chunks)
        tts.close()
        async for _ in chunks:
            pass

    with pytest.raises(EngineFault, match="closed"):
        asyncio.run(asyncio.wait_for(run(), 60))


def test_cancelling_a_reader_that_waits_cancels_the_request(tts: TTS) -> None:
    async def run() -> None:
        session = tts.session(seed=1)

        async def read() -> None:
            async for _ in iter_chunks(session.audio):
                pass

        reader = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        assert not session.audio.cancelled
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert session.audio.cancelled

    asyncio.run(asyncio.wait_for(run(), 30))
    assert is_drained(tts)


def test_closing_a_stream_early_cancels_the_request(tts: TTS) -> None:
    async def run() -> None:
        stream = AsyncTTS(tts).stream(LONG, seed=1)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert await asyncio.to_thread(is_drained, tts)

    asyncio.run(run())
