"""Word timestamps through the public interface: `audio.words` and `chunk.words`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from nightingale import TTS, ConfigError
from nightingale.decoding.word_alignment import WordAligner
from nightingale.engine.load import load_noise
from nightingale.engine.rendering.speech_energy import FRAME_SAMPLES, SpeechEnergy

TEXT = "Dr. Brown paid $5.50 today. [pause:300ms] Nobody **else** did."
WORDS = ["Dr.", "Brown", "paid", "$5.50", "today.", "Nobody", "else", "did."]


@pytest.fixture(scope="module")
def tts(english: TTS) -> Iterator[TTS]:
    model = load_noise().with_defaults(max_new_tokens=50)
    from dataclasses import replace

    with TTS.over(replace(model, frontend=english._model.frontend)) as made:
        yield made


def test_words_are_the_authors_and_are_timed_in_order(tts: TTS) -> None:
    audio = tts.say(TEXT, seed=1, timestamps=True)
    assert [word.word for word in audio.words] == WORDS
    assert [TEXT[word.start_char : word.end_char] for word in audio.words] == WORDS
    for word, following in pairwise(audio.words):
        assert 0 <= word.start_s < word.end_s <= following.start_s
    assert audio.words[-1].end_s <= audio.seconds
    # The pause that the text asks for lies between the two sentences.
    assert audio.words[5].start_s - audio.words[4].end_s > 0.29


def test_a_stream_hands_out_each_word_once_with_the_audio_that_ends_it(tts: TTS) -> None:
    seconds = 0.0
    streamed = []
    for chunk in tts.stream(TEXT, seed=1, timestamps=True):
        seconds += chunk.seconds
        assert all(word.end_s <= seconds + 1e-6 for word in chunk.words)
        streamed += chunk.words
    assert [word.word for word in streamed] == WORDS
    whole = tts.say(TEXT, seed=1, timestamps=True).words
    assert [word.start_s for word in streamed] == pytest.approx([word.start_s for word in whole], abs=0.1)


def test_timestamps_are_off_by_default_and_change_no_sample(tts: TTS) -> None:
    plain = tts.say(TEXT, seed=1)
    assert plain.words == ()
    assert plain.sha256 == tts.say(TEXT, seed=1, timestamps=True).sha256


def test_times_follow_the_speed(tts: TTS) -> None:
    normal, fast = (tts.say("One two three four.", seed=2, speed=s, timestamps=True) for s in (1.0, 2.0))
    for word, sooner in zip(normal.words, fast.words, strict=True):
        assert sooner.start_s == pytest.approx(word.start_s / 2)


def test_positions_in_a_session_count_from_its_first_text(tts: TTS) -> None:
    text = "The first sentence costs $3 today. The second one is free of charge."
    with tts.session(seed=1, timestamps=True) as session:
        for start in range(0, len(text), 5):
            session.push(text[start : start + 5])
        session.end()
        words = [word for chunk in session for word in chunk.words]
    assert [text[word.start_char : word.end_char] for word in words] == text.split()
    assert [word.word for word in words] == text.split()


def test_positions_in_ssml_are_those_of_the_document(tts: TTS) -> None:
    text = '<speak>One <break time="300ms"/> two <prosody rate="slow">three $4.</prosody></speak>'
    words = tts.say(text, seed=1, timestamps=True).words
    assert [text[word.start_char : word.end_char] for word in words] == ["One", "two", "three", "$4."]
    assert [word.word for word in words] == ["One", "two", "three", "$4."]


def test_a_decoder_without_traces_refuses_timestamps(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tts._worker.decoder, "traces_attention", False)
    with pytest.raises(ConfigError, match="words cannot be timed here"):
        tts.say("Hello.", timestamps=True)
    with pytest.raises(ConfigError, match="timestamps"):
        tts.say("Hello.", timestamps="yes")  # type: ignore[arg-type]


def test_alignment_is_monotonic_and_ignores_a_single_odd_token() -> None:
    aligner = WordAligner([-1, 0, 0, 1, 2, -1], words=3)
    attention = np.full((9, 6), 0.01, np.float32)
    for token, column in enumerate([1, 2, 4, 2, 3, 3, 4, 4, 1]):
        attention[token, column] = 0.9
    for part in (attention[:4], attention[4:]):
        aligner.extend(part)
    assert aligner.path(final=True) == [0, 0, 0, 0, 1, 1, 2, 2, 2]
    # Fewer tokens than words: the last words have none.
    short = WordAligner([0, 1, 2], words=3)
    short.extend(np.full((2, 3), 0.3, np.float32))
    assert short.path(final=True) == [0, 1]


def test_a_boundary_moves_to_a_pause_that_is_near() -> None:
    energy = SpeechEnergy()
    loud = np.full(FRAME_SAMPLES, 0.5, np.float32)
    frames = np.concatenate(
        [loud] * 20 + [loud * 0.001] * 10 + [loud] * 20 + [loud * 0.001] * 3 + [loud] * 20
    )
    for part in (frames[:1000], frames[1000:]):
        energy.push(part)
    assert [energy.divide(frame) for frame in (16, 25, 33)] == [(20, 30)] * 3
    assert energy.divide(10) == (10, 10)
    assert energy.divide(51) == (51, 51)  # the closure of a consonant
