"""Clear word boundaries: edits of the durations that Kokoro predicts.

Where a word ends in a stop and the next one begins with another, or two vowels meet, Kokoro merges them: "they'd tried"
is understood as "they tried", "can't I" as "can I", "draw up" as "drop". What the teacher does not pronounce,
no student learns. It predicts a duration for each phoneme, so the phonemes at such a boundary can be made longer:

    final d before t or d          the d, the pause between the words and the next stop
    final nt before a vowel        the t and the pause
    final stressed vowel before a vowel    the vowel and the pause

    clear_boundaries(ids, durations)
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale_lab.train.alignment import SPACE_PHONEME
from nightingale_lab.train.teachers.intonation import PRIMARY_STRESS, SECONDARY_STRESS

D, N, T = 46, 56, 62
VOWELS = frozenset({
    24, 25, 31, 33, 39, 41, 42, 43, 47, 51, 57, 63, 69, 70, 71, 72, 76, 83, 86, 87, 102, 135, 138, 177,
})  # fmt: skip
"""Kokoro's ids of vowels and diphthongs."""
STOP_TICKS, PAUSE_TICKS, NEXT_STOP_TICKS = 3, 3, 2
"""The shortest durations at a final d before t or d, in ticks of 25 ms."""
PAUSE_BEFORE_VOWEL_TICKS = 2
VOWEL_STRETCH = 1.5


def clear_boundaries(ids: Tensor, durations: Tensor) -> Tensor:
    """Return the durations, (batch, phonemes) in ticks, with longer phonemes at boundaries that are easily missed."""
    phonemes, ticks = ids.cpu().numpy(), durations.cpu().numpy().copy()
    for row, row_ticks in zip(phonemes, ticks, strict=True):
        for space in np.flatnonzero(row[1:-1] == SPACE_PHONEME) + 1:
            _clear(row, row_ticks, int(space))
    return torch.from_numpy(ticks).to(durations)


def _clear(ids: NDArray[np.int64], ticks: NDArray[np.int64], space: int) -> None:
    """Edit the durations around one space in place."""
    last, following = int(ids[space - 1]), space + 1
    while following < len(ids) - 1 and ids[following] in (PRIMARY_STRESS, SECONDARY_STRESS):
        following += 1
    first = int(ids[following])
    if last == D and first in (T, D):
        ticks[space - 1] = max(ticks[space - 1], STOP_TICKS)
        ticks[space] = max(ticks[space], PAUSE_TICKS)
        ticks[following] = max(ticks[following], NEXT_STOP_TICKS)
    elif first in VOWELS and last == T and ids[space - 2] == N:
        ticks[space - 1] = max(ticks[space - 1], STOP_TICKS)
        ticks[space] = max(ticks[space], PAUSE_BEFORE_VOWEL_TICKS)
    elif first in VOWELS and last in VOWELS and ids[space - 2] == PRIMARY_STRESS:
        ticks[space - 1] = round(VOWEL_STRETCH * ticks[space - 1])
        ticks[space] = max(ticks[space], PAUSE_BEFORE_VOWEL_TICKS)
