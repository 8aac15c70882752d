"""Text in as it is written, and the engine behind await."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nightingale import TTS, AsyncTTS
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.guards import ATTEMPTS
from nightingale.engine.model import Model
from nightingale.errors import ConfigError

ANSWER = "Good morning, and welcome back. Your train leaves in ten minutes. Shall I call a taxi?"


@pytest.fixture
def tts(noise_model: Model) -> TTS:
    return TTS.over(replace(noise_model, defaults=replace(noise_model.defaults, max_new_tokens=12)), "balanced")


def test_audio_comes_before_the_text_is_complete(tts: TTS) -> None:
    with tts.session(seed=1) as session:
        session.push("Good morning, and welcome back. Your train leaves")
        first = next(iter(session))
        assert first.seconds > 0
        session.push(" in ten minutes.")
        session.end()
        assert sum(chunk.seconds for chunk in session) > 0


def test_the_sound_does_not_depend_on_how_the_text_was_torn(tts: TTS) -> None:
    heard = []
    for size in (1, 3, 200):
        with tts.session(seed=1) as session:
            for at in range(0, len(ANSWER), size):
                session.push(ANSWER[at : at + size])
            session.end()
            heard.append(np.concatenate([chunk.samples for chunk in session]))
    assert np.array_equal(heard[0], heard[1])
    assert np.array_equal(heard[0], heard[2])


def test_pushing_and_listening_in_two_threads(tts: TTS) -> None:
    session = tts.session(seed=1)

    def write() -> None:
        for word in ANSWER.split():
            session.push(word + " ")
        session.end()

    writer = threading.Thread(target=write)
    writer.start()
    assert sum(chunk.seconds for chunk in session) > 1
    writer.join(10)
    assert session.metrics.audio_seconds > 1


def test_a_barge_in_stops_at_once_and_the_next_answer_speaks(tts: TTS) -> None:
    session = tts.session(seed=1)
    session.push(ANSWER * 5)
    next(iter(session))
    session.cancel()
    assert list(session) == []
    assert len(tts.say("Sorry?", seed=2).samples) > 0


def test_flush_speaks_what_has_no_end_yet(tts: TTS) -> None:
    with tts.session(seed=1) as session:
        session.push("no full stop here")
        session.flush()
        assert next(iter(session)).seconds > 0


def test_an_answer_without_words_ends(tts: TTS) -> None:
    with tts.session() as session:
        session.push("  \n")
        session.end()
        assert list(session) == []


def test_nothing_may_be_pushed_after_the_end(tts: TTS) -> None:
    with tts.session() as session:
        session.end()
        session.end()
        with pytest.raises(ConfigError, match="ended already"):
            session.push("more")


def test_a_pause_is_heard_as_long_as_it_was_asked_for(tts: TTS) -> None:
    plain = tts.say("One. Two.", seed=1)
    paused = tts.say("[pause:250ms] One. Two.", seed=1)
    assert not paused.samples[: 24_000 // 4].any()
    assert len(paused.samples) >= len(plain.samples)


def test_speed_changes_the_length_and_nothing_else_does(tts: TTS) -> None:
    plain, fast = tts.say("Hello there.", seed=1), tts.say("Hello there.", seed=1, speed=1.5)
    assert len(fast.samples) == round(len(plain.samples) / 1.5)
    with pytest.raises(ConfigError, match="speed"):
        tts.say("Hello", speed=9.0)


def misbehaving(
    model: Model, monkeypatch: pytest.MonkeyPatch, tokens: Any, profile: str = "exact", **defaults: Any
) -> TTS:
    """A model that draws what `tokens(attempt, position)` says."""
    attempts: list[Decoding] = []

    def draw(self: Decoding, scores: Any) -> int:
        if self not in attempts:
            attempts.append(self)
        return int(tokens(attempts.index(self), self.drawn))

    monkeypatch.setattr(Decoding, "draw", draw)
    defaults = {"guarded": True, "max_new_tokens": 600, **defaults}
    return TTS.over(replace(model, defaults=replace(model.defaults, **defaults)), profile)


def test_a_loop_is_drawn_again(noise_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def tokens(attempt: int, at: int) -> int:
        if attempt == 0:
            return 100 + at % 3
        return 6562 if at == 30 else 7 * at

    audio = misbehaving(noise_model, monkeypatch, tokens).say("Hello there.", seed=1)
    assert audio.metrics.retries == 1
    assert audio.metrics.tokens == 30


def test_a_loop_that_was_half_heard_is_cut_and_not_drawn_again(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens(attempt: int, at: int) -> int:
        assert attempt == 0
        return 7 * at if at < 20 else 100 + at % 3

    audio = misbehaving(noise_model, monkeypatch, tokens, "balanced").say("Hello there, everybody.", seed=1)
    assert audio.metrics.retries == 0
    assert 20 < audio.metrics.tokens < 20 + 60


def test_a_model_that_falls_silent_while_it_is_heard_is_stopped(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Hello there."
    tokens = misbehaving(noise_model, monkeypatch, lambda _, at: 7 * at if at < 30 else 4299, "balanced")
    audio = tokens.say(text, seed=1)
    assert audio.metrics.retries == 0
    assert 30 < audio.metrics.tokens < 30 + 75 + 25


def test_a_model_that_never_stops_is_stopped(noise_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    audio = misbehaving(noise_model, monkeypatch, lambda attempt, at: (37 * at * at) % 6000).say(
        "Hi!", seed=1
    )
    assert audio.metrics.retries == ATTEMPTS - 1
    assert audio.seconds < 6


def test_a_model_that_stops_at_once_is_asked_again(
    noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens(attempt: int, at: int) -> int:
        return 6562 if attempt == 0 or at == 40 else 11 * at

    audio = misbehaving(noise_model, monkeypatch, tokens).say("A sentence of some length.", seed=1)
    assert audio.metrics.retries == 1
    assert audio.metrics.tokens == 40


def test_silence_at_the_end_is_cut(noise_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def tokens(attempt: int, at: int) -> int:
        return 11 * at if at < 40 else 4299

    audio = misbehaving(noise_model, monkeypatch, tokens).say("A sentence of some length.", seed=1)
    assert audio.metrics.retries == 0
    assert 40 <= audio.metrics.tokens <= 40 + 25


def test_what_can_be_awaited_is_what_can_be_said(tts: TTS) -> None:
    async def run() -> None:
        agent = AsyncTTS(tts)
        audio = await agent.say("Hello there.", seed=1)
        chunks = [chunk async for chunk in agent.stream("Hello there.", seed=1)]
        assert np.array_equal(np.concatenate([chunk.samples for chunk in chunks]), audio.samples)
        async with await agent.session(seed=1) as session:
            session.push(ANSWER)
            session.end()
            assert sum([chunk.seconds async for chunk in session]) > 1
        both = await asyncio.gather(agent.say("One.", seed=1), agent.say("Two.", seed=2))
        assert all(len(each.samples) for each in both)

    asyncio.run(run())


def test_leaving_an_awaited_stream_stops_the_work(tts: TTS) -> None:
    async def run() -> None:
        stream = AsyncTTS(tts).stream(ANSWER * 5, seed=1)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        for _ in range(500):
            if tts._worker.scheduler.idle and not tts._worker._jobs:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the work went on")

    asyncio.run(run())
