"""The most likely place of known phonemes in a recording."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from nightingale_lab.train.forced_alignment import SILENCE, align

P, T, A, SPACE, COMMA, STRESS = 58, 62, 43, 16, 3, 156


def log_probs(rows: list[list[int]], *, noise: float = 0.0) -> torch.Tensor:
    """Return log-probabilities that prefer one phoneme in each frame."""
    torch.manual_seed(0)
    longest = max(map(len, rows))
    logits = noise * torch.randn(len(rows), longest, 178)
    for row, spoken in zip(logits, rows, strict=True):
        row[torch.arange(len(spoken)), torch.tensor(spoken)] += 6.0
    return logits.log_softmax(2)


def ids(*phonemes: int) -> NDArray[np.uint8]:
    return np.array(phonemes, dtype=np.uint8)


def test_phonemes_are_found_where_they_are_likely() -> None:
    spoken = [SILENCE, SILENCE, P, P, A, A, A, SPACE, T, A, SILENCE]
    found, likely = align(
        log_probs([spoken], noise=0.5), torch.tensor([len(spoken)]), [ids(P, A, SPACE, T, A)]
    )
    assert found[0].tolist() == spoken
    assert likely[0] > -2.5


def test_marks_spaces_and_stress_are_skipped_if_the_reader_did_not_pause() -> None:
    spoken = [P, P, A, T, T, A]
    written = ids(P, A, COMMA, SPACE, STRESS, T, A)
    assert align(log_probs([spoken]), torch.tensor([6]), [written])[0][0].tolist() == spoken


def test_phonemes_are_not_skipped_even_if_they_are_unlikely() -> None:
    found, _ = align(log_probs([[P, P, A, A, A]]), torch.tensor([5]), [ids(P, T, A)])
    assert list(dict.fromkeys(found[0].tolist())) == [P, T, A]


def test_clips_of_different_lengths_are_aligned_as_if_alone() -> None:
    rows = [[P, A, A, T, T, A, P], [T, A, A, P]]
    written = [ids(P, A, T, A, P), ids(T, A, P)]
    together = log_probs(rows, noise=2.0)
    found, likely = align(together, torch.tensor([7, 4]), written)
    for row, length in enumerate((7, 4)):
        alone, same = align(together[row : row + 1, :length], torch.tensor([length]), [written[row]])
        assert torch.equal(found[row, :length], alone[0])
        torch.testing.assert_close(likely[row], same[0])
    assert found[1, 4:].tolist() == [SILENCE] * 3
