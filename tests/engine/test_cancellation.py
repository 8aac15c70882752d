"""Requests end when their caller drops, cancels or interrupts them, and live as long as they are read."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from engine_helpers import LIMIT_S, is_drained, open_engine

from nightingale import TTS, AsyncTTS
from nightingale.backends.profiles import PROFILES
from nightingale.engine.load import Model
from nightingale.engine.requests.live import LiveSession
from nightingale.engine.session import Session
from nightingale.errors import EmptyText

LONG = "This is one of very many sentences that will never be played. " * 1000
"""More than the engine generates ahead of its reader: without a reader it is never finished."""


@pytest.fixture
def tts(noise_model: Model) -> Iterator[TTS]:
    with open_engine(noise_model, "exact", max_new_tokens=60) as engine:
        yield engine


def test_a_dropped_stream_that_was_never_read_is_cancelled(tts: TTS) -> None:
    stream = tts.stream(LONG, seed=1)
    assert tts._worker._jobs
    del stream
    assert is_drained(tts)


def test_closing_a_stream_cancels_it_whether_or_not_it_was_read(tts: TTS) -> None:
    streams = [tts.stream(LONG, seed=seed) for seed in (1, 2)]
    next(streams[0])
    for stream in streams:
        stream.close()
        assert list(stream) == []
    assert is_drained(tts)


def test_a_stream_whose_reader_is_interrupted_is_cancelled(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(session: Session) -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Session, "chunks", interrupted)
    stream = tts.stream(LONG, seed=1)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert is_drained(tts)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_stream_keeps_its_engine_alive_until_it_ends_or_is_closed(
    noise_model: Model, is_closed: bool
) -> None:
    tts = open_engine(noise_model, "exact", max_new_tokens=60)
    engine = weakref.ref(tts)
    stream = tts.stream(LONG if is_closed else "Hello there.", seed=1)
    del tts
    gc.collect()
    samples = len(next(stream).samples)
    assert engine() is not None
    if is_closed:
        stream.close()
    else:
        assert samples + sum(len(chunk.samples) for chunk in stream) == 60 * 960
    gc.collect()
    assert engine() is None


def test_a_dropped_session_is_cancelled(tts: TTS) -> None:
    session = tts.session(seed=1)
    session.push(LONG)
    assert tts._worker._jobs
    del session
    assert is_drained(tts)


def test_the_loop_that_reads_a_session_keeps_it_alive(tts: TTS) -> None:
    def complete_session() -> LiveSession:
        session = tts.session(seed=1)
        session.push("Hello there. ")
        session.end()
        return session

    assert sum(len(chunk.samples) for chunk in complete_session()) >= 60 * 960

    async def read() -> None:
        async for _ in await AsyncTTS(tts).session(seed=1):
            pass

    with pytest.raises(TimeoutError):  # it waits for text, and was not cancelled for want of references
        asyncio.run(asyncio.wait_for(read(), 0.3))
    assert is_drained(tts)


def test_a_session_keeps_its_engine_alive(noise_model: Model) -> None:
    session = open_engine(noise_model, "exact", max_new_tokens=60).session(seed=1)
    gc.collect()
    session.push("Hello there. ")
    session.end()
    assert sum(len(chunk.samples) for chunk in session) >= 60 * 960


def test_one_bad_text_among_many_cancels_all(tts: TTS) -> None:
    with pytest.raises(EmptyText):
        tts.say_many([LONG, " "], seed=1)
    assert is_drained(tts)
    with pytest.raises(EmptyText):
        asyncio.run(AsyncTTS(tts).say_many([LONG, " "], seed=1))
    assert is_drained(tts)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_say_many_takes_more_texts_than_the_queue_holds(noise_model: Model, is_async: bool) -> None:
    texts = ["One.", "Two, and more.", "Three."] * 4
    profile = replace(PROFILES["exact"], slots=2, queue_limit=1)
    with open_engine(noise_model, profile, max_new_tokens=20) as tts:
        many = asyncio.run(AsyncTTS(tts).say_many(texts, seed=1)) if is_async else tts.say_many(texts, seed=1)
        assert [audio.sha256 for audio in many] == [tts.say(text, seed=1).sha256 for text in texts]


def test_an_interrupted_say_is_cancelled(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = Session.chunks

    def interrupted(session: Session) -> Iterator[Any]:
        yield next(chunks(session))
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "chunks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tts.say(LONG, seed=1)
    assert is_drained(tts)


@pytest.mark.parametrize("by", ["the caller", "the end of the loop"])
def test_a_request_cancelled_while_a_thread_opens_it_is_not_left_behind(
    tts: TTS, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, may_open = threading.Event(), threading.Event()
    opened: list[Session] = []
    plain_open = tts.open

    def slow_open(*args: Any, **options: Any) -> Session:
        entered.set()
        assert may_open.wait(LIMIT_S)
        opened.append(plain_open(*args, **options))
        return opened[0]

    monkeypatch.setattr(tts, "open", slow_open)

    async def run() -> None:
        request = asyncio.create_task(anext(aiter(AsyncTTS(tts).stream(LONG, seed=1))))
        while not entered.is_set():
            await asyncio.sleep(0.005)
        if by == "the end of the loop":
            threading.Timer(0.1, may_open.set).start()
            return
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        may_open.set()
        while not (opened and opened[0].cancelled):
            await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))
    assert opened[0].cancelled
    assert is_drained(tts)


def test_cancelling_an_awaited_say_cancels_the_request(tts: TTS) -> None:
    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(AsyncTTS(tts).say(LONG, seed=1), 0.2)
        assert await asyncio.to_thread(is_drained, tts)

    asyncio.run(run())
