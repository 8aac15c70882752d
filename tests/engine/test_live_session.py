"""Sessions that take text while they return audio."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from engine_helpers import TOKEN_SAMPLES, call_in_thread, is_drained, is_stalled, open_engine, wait_until

from nightingale import TTS
from nightingale.engine.load import Model
from nightingale.errors import ConfigError, TextError
from nightingale.types import AudioChunk

ANSWER = "Good morning, and welcome back. Your train leaves in ten minutes. Shall I call a taxi?"
TOKENS = 12


@pytest.fixture
def tts(noise_model: Model) -> TTS:
    return open_engine(noise_model, max_new_tokens=TOKENS)


def test_audio_comes_before_the_text_is_complete(tts: TTS) -> None:
    with tts.session(seed=1) as session:
        session.push("Good morning, and welcome back. Your train leaves")
        first = next(iter(session))
        assert first.seconds > 0
        session.push(" in ten minutes.")
        session.end()
        assert sum(chunk.seconds for chunk in session) > 0


def test_audio_does_not_depend_on_how_the_text_was_split(tts: TTS) -> None:
    results = []
    for size in (1, 3, 200):
        with tts.session(seed=1) as session:
            for at in range(0, len(ANSWER), size):
                session.push(ANSWER[at : at + size])
            session.end()
            results.append(np.concatenate([chunk.samples for chunk in session]))
    assert len(results[0]) > 3 * TOKENS * TOKEN_SAMPLES
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_the_first_chunk_of_a_segment_names_it(tts: TTS) -> None:
    with tts.session(seed=1) as session:
        session.push(ANSWER.replace("back. ", "back. [pause:1s] "))
        session.end()
        starts = [chunk.begins for chunk in session if chunk.begins]
    assert [(start.text.strip(), start.pause_samples) for start in starts] == [
        ("Good morning, and welcome back.", 2880),
        ("", 24_000),
        ("Your train leaves in ten minutes.", 2880),
        ("Shall I call a taxi?", 2880),
    ]


def test_text_is_pushed_in_one_thread_and_audio_read_in_another(tts: TTS) -> None:
    session = tts.session(seed=1)

    def write() -> None:
        for word in ANSWER.split():
            session.push(word + " ")
        session.end()

    writer = threading.Thread(target=write)
    writer.start()
    seconds = sum(chunk.seconds for chunk in session)
    writer.join(10)
    assert seconds > 1
    assert session.metrics.audio_seconds == pytest.approx(seconds)


def test_cancel_stops_the_audio_and_the_next_request_runs(tts: TTS) -> None:
    session = tts.session(seed=1)
    session.push(ANSWER * 5)
    next(iter(session))
    session.cancel()
    assert list(session) == []
    assert len(tts.say("Sorry?", seed=2).samples) == TOKENS * TOKEN_SAMPLES
    assert is_drained(tts)


def test_text_and_its_end_wake_an_idle_engine(tts: TTS) -> None:
    session = tts.session(seed=1)
    assert wait_until(lambda: any(job.parked for job in tts._worker._jobs.values()))
    session.push(ANSWER)
    chunk = call_in_thread(lambda: next(iter(session)))
    assert isinstance(chunk, AudioChunk)
    session.flush()
    assert wait_until(lambda: is_stalled(tts) and session.audio.take() is None)
    session.end()
    assert call_in_thread(lambda: list(session)) == []
    assert is_drained(tts)


def test_leaving_the_block_of_a_session_cancels_it(tts: TTS) -> None:
    with tts.session(seed=1) as session:
        session.push(ANSWER)
    assert session.audio.cancelled
    assert is_drained(tts)


def test_flush_speaks_an_incomplete_sentence(tts: TTS) -> None:
    with tts.session(seed=1) as session:
        session.push("no full stop here")
        assert session.audio.take() is None
        session.flush()
        assert next(iter(session)).seconds > 0


def test_a_session_without_words_ends_without_audio(tts: TTS) -> None:
    with tts.session() as session:
        session.push("  \n")
        session.end()
        assert list(session) == []


def test_push_after_the_end_is_refused(tts: TTS) -> None:
    with tts.session() as session:
        session.end()
        session.end()
        with pytest.raises(ConfigError, match="ended already"):
            session.push("more")


def test_a_session_whose_last_text_is_refused_still_ends(tts: TTS) -> None:
    session = tts.session(seed=1)
    session.push("Hello there.")
    session.flush()
    session.push("And then [pause:600s]")
    with pytest.raises(TextError, match="too long"):
        session.end()
    chunks = call_in_thread(lambda: list(session))
    assert isinstance(chunks, list)
    assert sum(len(chunk.samples) for chunk in chunks) >= TOKENS * TOKEN_SAMPLES


def test_a_pause_tag_is_silence_of_its_length(tts: TTS) -> None:
    plain = tts.say("One. Two.", seed=1)
    paused = tts.say("[pause:250ms] One. Two.", seed=1)
    assert len(paused.samples) == len(plain.samples) + 24_000 // 4
    assert not paused.samples[: 24_000 // 4].any()
    assert np.array_equal(paused.samples[24_000 // 4 :], plain.samples)


def test_speed_changes_the_length_of_the_audio(tts: TTS) -> None:
    plain, fast = tts.say("Hello there.", seed=1), tts.say("Hello there.", seed=1, speed=1.5)
    assert len(fast.samples) == round(len(plain.samples) / 1.5)
    assert fast.metrics.tokens == plain.metrics.tokens
    with pytest.raises(ConfigError, match="speed"):
        tts.say("Hello", speed=9.0)
