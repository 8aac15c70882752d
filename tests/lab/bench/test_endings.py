"""Planted defects: each detector must fire on its own defect and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from nightingale.types import Samples
from nightingale_lab.bench.endings import defects, expected_seconds, shape_of
from nightingale_lab.bench.wer import compare

RATE_HZ = 24_000
TEXT = "The farmer sold his apples at the village market."


def speech(seconds: float, *, fade_seconds: float = 0.15) -> Samples:
    """A buzz in syllables of 0.2 s that dies away at the end, then 0.1 s of nothing."""
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    syllables = 0.55 + 0.45 * np.cos(2 * np.pi * 5.0 * t)
    voice = sum(np.sin(2 * np.pi * 120.0 * k * t) / k for k in range(1, 8))
    fade = np.clip((seconds - t) / fade_seconds, 0.0, 1.0) ** 2
    sound = 0.2 * syllables * voice * fade
    return np.concatenate([sound, np.zeros(RATE_HZ // 10)]).astype(np.float32)


def found(samples: Samples, text: str = TEXT) -> tuple[str, ...]:
    return defects(shape_of(samples, RATE_HZ, text))


@pytest.mark.parametrize("rate", [0.75, 1.0, 1.6])
def test_speech_of_ordinary_length_has_no_defect(rate: float) -> None:
    assert found(speech(rate * expected_seconds(TEXT))) == ()


@pytest.mark.parametrize(("text", "seconds"), [("No.", 0.45), ("No.", 1.3), ("I", 0.3)])
def test_a_single_word_may_be_short_or_drawn_out(text: str, seconds: float) -> None:
    assert found(speech(seconds), text) == ()


def test_a_doubled_sentence_is_a_runaway() -> None:
    once = speech(1.05 * expected_seconds(TEXT))
    assert found(np.concatenate([once, once])) == ("runaway",)


def test_a_babbled_word_is_a_runaway() -> None:
    assert found(speech(4.0), "No.") == ("runaway",)


def test_half_a_sentence_is_a_cut_off() -> None:
    assert found(speech(0.5 * expected_seconds(TEXT))) == ("cut-off",)


def test_speech_stopped_at_full_level_is_an_abrupt_end() -> None:
    whole = speech(expected_seconds(TEXT))
    stop = round(0.9 * expected_seconds(TEXT) * RATE_HZ / (RATE_HZ // 5)) * (RATE_HZ // 5)
    assert found(whole[:stop]) == ("abrupt end",)


def test_a_hole_in_the_middle_is_a_long_pause() -> None:
    left, right = np.split(speech(expected_seconds(TEXT)), [RATE_HZ])
    hole = np.zeros(round(1.8 * RATE_HZ), dtype=np.float32)
    assert found(np.concatenate([left, hole, right])) == ("long pause",)


def test_two_seconds_of_nothing_at_the_end_are_a_long_trail() -> None:
    tail = np.zeros(2 * RATE_HZ, dtype=np.float32)
    assert found(np.concatenate([speech(expected_seconds(TEXT)), tail])) == ("long trail",)


@pytest.mark.parametrize("length", [0, 100, RATE_HZ])
def test_nothing_at_all_is_silent(length: int) -> None:
    assert found(np.zeros(length, dtype=np.float32)) == ("silent",)


def test_a_lost_last_word_counts_only_if_every_recognizer_misses_it() -> None:
    shape = shape_of(speech(expected_seconds(TEXT)), RATE_HZ, TEXT)
    lost, whole = compare(TEXT, TEXT.removesuffix(" market.")), compare(TEXT, TEXT)
    assert defects(shape, [lost, lost]) == ("cut-off",)
    assert defects(shape, [lost, whole]) == ()


def test_added_last_words_count_only_if_every_recognizer_hears_them() -> None:
    shape = shape_of(speech(expected_seconds(TEXT)), RATE_HZ, TEXT)
    more, whole = compare(TEXT, TEXT + " market market"), compare(TEXT, TEXT)
    assert defects(shape, [more, more]) == ("runaway",)
    assert defects(shape, [more, whole]) == ()


def test_numerals_are_expected_to_take_as_long_as_their_words() -> None:
    assert expected_seconds("1984") == pytest.approx(expected_seconds("nineteen eighty four"))
