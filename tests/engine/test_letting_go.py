"""Whoever leaves, however he leaves, leaves no work behind; and whoever stays keeps what he needs."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from nightingale import TTS, AsyncTTS
from nightingale.engine.model import Model
from nightingale.backends.profiles import PROFILES
from nightingale.engine.session import Session
from nightingale.errors import EmptyText, TextError

LONG = "This is one of very many sentences that nobody will ever listen to. " * 1000
"""More than the engine speaks ahead of its listener: without him it is never done."""
LIMIT_S = 20.0


@pytest.fixture
def tts(tts_with: Callable[..., TTS]) -> Iterator[TTS]:
    with tts_with(defaults={"max_new_tokens": 60}) as engine:
        yield engine


def is_empty(tts: TTS) -> bool:
    """Whether the engine has let go of everybody, after a while."""
    gc.collect()
    deadline = time.monotonic() + LIMIT_S
    while tts._worker._jobs:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def test_a_stream_that_was_never_asked_for_sound_is_forgotten(tts: TTS) -> None:
    stream = tts.stream(LONG, seed=1)
    assert tts._worker._jobs
    del stream
    assert is_empty(tts)


def test_a_session_that_is_let_go_of_is_forgotten(tts: TTS) -> None:
    session = tts.session(seed=1)
    session.push(LONG)
    del session
    assert is_empty(tts)


def test_a_session_is_heard_though_nobody_holds_it_but_the_loop(tts: TTS) -> None:
    def written() -> Any:
        session = tts.session(seed=1)
        session.push("Hello there. ")
        session.end()
        return session

    assert list(written())

    async def story() -> None:
        async for _ in await AsyncTTS(tts).session(seed=1):
            pass

    with pytest.raises(TimeoutError):  # it waits for text, and is not cancelled by its own disappearance
        asyncio.run(asyncio.wait_for(story(), 0.3))
    assert is_empty(tts)


def test_a_session_keeps_its_engine_alive(tts_with: Callable[..., TTS]) -> None:
    session = tts_with(defaults={"max_new_tokens": 60}).session(seed=1)
    gc.collect()
    session.push("Hello there. ")
    session.end()
    assert list(session)


def test_one_bad_text_among_many_ends_them_all(tts: TTS) -> None:
    with pytest.raises(EmptyText):
        tts.say_many([LONG, " "], seed=1)
    assert is_empty(tts)
    with pytest.raises(EmptyText):
        asyncio.run(AsyncTTS(tts).say_many([LONG, " "], seed=1))
    assert is_empty(tts)


@pytest.mark.parametrize("awaited", [False, True], ids=["called", "awaited"])
def test_more_texts_than_the_line_is_long_are_all_spoken(noise_model: Model, awaited: bool) -> None:
    texts = ["One.", "Two, and more.", "Three."] * 4
    model = replace(noise_model, defaults=replace(noise_model.defaults, max_new_tokens=20))
    with TTS.over(model, replace(PROFILES["exact"], slots=2, queue_limit=1)) as tts:
        many = asyncio.run(AsyncTTS(tts).say_many(texts, seed=1)) if awaited else tts.say_many(texts, seed=1)
        assert [one.sha256 for one in many] == [tts.say(text, seed=1).sha256 for text in texts]


def test_who_is_interrupted_while_saying_leaves_nothing(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = Session.chunks

    def interrupted(session: Session) -> Iterator[Any]:
        yield next(chunks(session))
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "chunks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tts.say(LONG, seed=1)
    assert is_empty(tts)


def test_being_cancelled_while_a_thread_opens_leaves_nothing(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on, opened = threading.Event(), threading.Event(), threading.Event()
    really = tts.open

    def slowly(*args: Any, **more: Any) -> Session:
        entered.set()
        assert go_on.wait(LIMIT_S)
        try:
            return really(*args, **more)
        finally:
            opened.set()

    monkeypatch.setattr(tts, "open", slowly)

    async def story() -> None:
        saying = asyncio.create_task(anext(aiter(AsyncTTS(tts).stream(LONG, seed=1))))
        while not entered.is_set():
            await asyncio.sleep(0.005)
        saying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saying
        go_on.set()
        while not opened.is_set():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(story(), LIMIT_S))
    assert is_empty(tts)


def test_cancelling_what_is_awaited_stops_the_work(tts: TTS) -> None:
    async def story() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(AsyncTTS(tts).say(LONG, seed=1), 0.2)
        assert await asyncio.to_thread(is_empty, tts)

    asyncio.run(story())


def test_a_session_whose_last_words_cannot_be_said_ends_all_the_same(tts: TTS) -> None:
    session = tts.session(seed=1)
    session.push("Hello there.")
    session.flush()
    session.push("And then [pause:600s]")
    with pytest.raises(TextError):
        session.end()
    heard: list[Any] = []
    listener = threading.Thread(target=lambda: heard.extend(session), daemon=True)
    listener.start()
    listener.join(LIMIT_S)
    assert not listener.is_alive()
    assert heard
