"""Guards in the engine: utterances that go wrong are retried before any audio is delivered, and cut after that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_helpers import open_engine

from nightingale import TTS
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.guards import ATTEMPTS
from nightingale.engine.load import Model

STOP, SILENCE = 6562, 4299
TEXT = "A sentence of some length."


@pytest.fixture
def scripted(noise_model: Model, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TTS]:
    """Return a function that opens an engine which samples `script(attempt, position)`."""

    def make(script: Callable[[int, int], int], profile: str = "exact") -> TTS:
        attempts: list[Decoding] = []

        def sample(self: Decoding, logits: Any) -> int:
            if self not in attempts:
                attempts.append(self)
            return script(attempts.index(self), self.appended)

        monkeypatch.setattr(Decoding, "sample", sample)
        return open_engine(noise_model, profile, guarded=True, max_new_tokens=600)

    return make


def test_a_loop_is_retried(scripted: Callable[..., TTS]) -> None:
    def script(attempt: int, position: int) -> int:
        if attempt == 0:
            return 100 + position % 3
        return STOP if position == 30 else 7 * position

    metrics = scripted(script).say("Hello there.", seed=1).metrics
    assert (metrics.retries, metrics.tokens) == (1, 30)


def test_a_loop_is_cut_and_not_retried_once_audio_was_read(scripted: Callable[..., TTS]) -> None:
    def script(attempt: int, position: int) -> int:
        assert attempt == 0
        return 7 * position if position < 20 else 100 + position % 3

    metrics = scripted(script, "balanced").say("Hello there, everybody.", seed=1).metrics
    assert metrics.retries == 0
    assert 20 < metrics.tokens < 20 + 60


def test_silence_ends_an_utterance_once_audio_was_read(scripted: Callable[..., TTS]) -> None:
    tts = scripted(lambda _, position: 7 * position if position < 30 else SILENCE, "balanced")
    metrics = tts.say("Hello there.", seed=1).metrics
    assert metrics.retries == 0
    assert 30 < metrics.tokens < 30 + 75 + 25


def test_an_utterance_that_never_stops_is_ended(scripted: Callable[..., TTS]) -> None:
    audio = scripted(lambda _, position: (37 * position * position) % 6000).say("Hi!", seed=1)
    assert audio.metrics.retries == ATTEMPTS - 1
    assert audio.seconds < 6


def test_an_immediate_stop_is_retried(scripted: Callable[..., TTS]) -> None:
    tts = scripted(lambda attempt, position: STOP if attempt == 0 or position == 40 else 11 * position)
    metrics = tts.say(TEXT, seed=1).metrics
    assert (metrics.retries, metrics.tokens) == (1, 40)


def test_silence_at_the_end_is_cut(scripted: Callable[..., TTS]) -> None:
    tts = scripted(lambda _, position: 11 * position if position < 40 else SILENCE)
    metrics = tts.say(TEXT, seed=1).metrics
    assert metrics.retries == 0
    assert 40 <= metrics.tokens <= 40 + 25
