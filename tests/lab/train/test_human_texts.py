"""Phonemes of people's recordings, from transcripts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nightingale_lab.train.human_texts import read_phonemes, readable, write_phonemes


def test_a_transcript_is_read_as_training_text() -> None:
    assert readable(" He paid 20 dollars, and left") == "He paid twenty dollars, and left."


def test_a_transcript_of_one_repeated_word_or_of_nothing_is_left_out() -> None:
    assert readable("Zero zero zero zero zero zero.") is None
    assert readable("") is None


def test_phonemes_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = [np.array(ids, dtype=np.uint8) for ids in ([], [50, 16, 3], [], [7], [])]
    write_phonemes(tmp_path / "phonemes.npz", written)
    read = read_phonemes(tmp_path / "phonemes.npz")
    assert [each.tolist() for each in read] == [each.tolist() for each in written]
