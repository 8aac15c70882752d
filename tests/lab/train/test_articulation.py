"""Clear word boundaries: which durations of the teacher become longer."""

from __future__ import annotations

import pytest
import torch

from nightingale_lab.train.teachers.articulation import (
    NEXT_STOP_TICKS,
    PAUSE_BEFORE_VOWEL_TICKS,
    PAUSE_TICKS,
    STOP_TICKS,
    clear_boundaries,
)

KOKORO = dict(
    zip(" .dknptðAIɔæʌɪˈˌ", (16, 4, 46, 53, 56, 58, 62, 81, 24, 25, 76, 72, 138, 102, 156, 157), strict=True)
)


def edited(phonemes: str, ticks: int = 1) -> list[int]:
    """Return the durations of the phonemes, which were all `ticks`."""
    ids = torch.tensor([[0, *(KOKORO[phoneme] for phoneme in phonemes), 0]])
    return clear_boundaries(ids, torch.full_like(ids, ticks))[0, 1:-1].tolist()


def test_a_final_d_is_separated_from_a_following_stop() -> None:
    assert edited("ðAd tId.") == [1, 1, STOP_TICKS, PAUSE_TICKS, NEXT_STOP_TICKS, 1, 1, 1]
    assert edited("Id ˈdɪp.") == [1, STOP_TICKS, PAUSE_TICKS, 1, NEXT_STOP_TICKS, 1, 1, 1]


def test_the_t_of_a_negation_is_separated_from_a_following_vowel() -> None:
    assert edited("kænt ˌI.") == [1, 1, 1, STOP_TICKS, PAUSE_BEFORE_VOWEL_TICKS, 1, 1, 1]


def test_stressed_vowels_are_separated_from_a_following_vowel() -> None:
    assert edited("dˈɔ ʌp.", ticks=4) == [4, 4, 6, 4, 4, 4, 4]
    assert edited("dˈɔ ʌp.")[2:4] == [2, PAUSE_BEFORE_VOWEL_TICKS]


@pytest.mark.parametrize("phonemes", ["ðA tId.", "kæt ɪn.", "ðAd ðA.", "ðA ʌp.", "dˈɔ dˈɔ.", "d", " d"])
def test_other_boundaries_keep_their_durations(phonemes: str) -> None:
    assert set(edited(phonemes)) == {1}


def test_durations_that_are_long_enough_are_kept() -> None:
    assert set(edited("ðAd tId.", ticks=9)) == {9}


def test_the_rows_of_a_batch_are_edited_one_by_one() -> None:
    rows = torch.tensor([[0, 25, 46, 16, 62, 25, 0, 0], [0, 25, 16, 25, 0, 0, 0, 0]])
    durations = clear_boundaries(rows, torch.ones_like(rows))
    assert durations.tolist() == [[1, 1, 3, 3, 2, 1, 1, 1], [1] * 8]
