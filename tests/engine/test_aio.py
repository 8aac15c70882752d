"""Listening without waiting in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from nightingale import TTS, AsyncTTS
from nightingale.engine.aio import heard
from nightingale.errors import EngineFault

LISTENERS = 24


def test_many_listeners_need_no_threads(tts_with: Callable[..., TTS]) -> None:
    """With one thread for the whole loop, a listener who waited in it would keep all others out."""

    async def story() -> list[int]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        async with AsyncTTS(tts_with()) as tts:

            async def listen(seed: int) -> int:
                return sum([len(chunk.samples) async for chunk in tts.stream("Hello there.", seed=seed)])

            return await asyncio.gather(*(listen(seed) for seed in range(LISTENERS)))

    lengths = asyncio.run(asyncio.wait_for(story(), 60))
    assert len(lengths) == LISTENERS
    assert min(lengths) > 0


def test_taking_never_waits(tts_with: Callable[..., TTS]) -> None:
    with tts_with() as tts:
        session = tts.session(seed=1)
        assert session.audio.take() is None
        session.push("Hello there. ")
        session.end()
        assert len(list(session)) > 0
        with pytest.raises(EOFError):
            session.audio.take()


def test_who_listens_is_told_of_what_is_there_already(tts_with: Callable[..., TTS]) -> None:
    with tts_with() as tts:
        session = tts.open("Hello there.", seed=1)
        list(session.chunks())
        told: list[bool] = []
        session.listen(lambda: told.append(True))
        assert told


def test_a_fault_reaches_whoever_awaits(tts_with: Callable[..., TTS]) -> None:
    tts = tts_with(defaults={"max_new_tokens": 100})

    async def story() -> None:
        session = tts.open("Hello there. " * 80, seed=1)
        chunks = heard(session)
        await anext(chunks)
        tts.close()
        async for _ in chunks:
            pass

    with pytest.raises(EngineFault, match="closed"):
        asyncio.run(asyncio.wait_for(story(), 60))


def test_being_cancelled_while_waiting_stops_the_work(tts_with: Callable[..., TTS]) -> None:
    async def story(tts: TTS) -> None:
        session = tts.session(seed=1)

        async def listen() -> None:
            async for _ in heard(session.audio):
                pass

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0.05)
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening
        assert session.audio.cancelled

    with tts_with() as tts:
        asyncio.run(asyncio.wait_for(story(tts), 30))
