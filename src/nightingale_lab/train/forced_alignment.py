"""Forced alignment: the phoneme of each frame of a recording whose phonemes are known in order, but not in time.

The most likely path (Viterbi) through the phonemes of all recordings at once. Silence may come first and last, and
marks, spaces and stress may be skipped, since a reader pauses and stresses as he likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale_lab.train.alignment import SPACE_PHONEME

SILENCE: Final = 0
"""The phoneme of silence at a recording's ends."""
STRESS: Final = (156, 157)
"""Kokoro's ids of ˈ and ˌ."""
OPTIONAL: Final = frozenset({SILENCE, *range(1, SPACE_PHONEME + 1), *STRESS})
"""Silence, the marks and the space, and stress."""
MAX_SKIPPED: Final = 4
"""The number of optional phonemes in a row that may be skipped, such as a comma, a space and stress."""
IMPOSSIBLE: Final = -1e9


def align(log_probs: Tensor, frames: Tensor, phonemes: Sequence[NDArray[np.uint8]]) -> tuple[Tensor, Tensor]:
    """Return the phoneme of each frame, (clips, frames) int64, and the mean log-probability of each clip's path.

    log_probs: (clips, frames, phonemes). frames: (clips,), how many frames of each row are real; the others get
    SILENCE. phonemes: of each clip, in the order in which they are spoken.
    """
    device, (clips, length, _) = log_probs.device, log_probs.shape
    states, counts = _states(phonemes, device)
    optional = torch.isin(states, torch.tensor(sorted(OPTIONAL), device=device))
    emitted = log_probs.gather(2, states[:, None].expand(-1, length, -1))
    steps = _allowed_steps(optional)
    score = torch.where(_reachable_first(optional), emitted[:, 0], IMPOSSIBLE)
    came_from = torch.zeros(length, clips, states.shape[1], dtype=torch.uint8, device=device)
    for frame in range(1, length):
        moved = torch.stack([_shifted(score, step).masked_fill(~steps[step], IMPOSSIBLE) for step in steps])
        best, step = moved.max(0)
        came_from[frame] = step.to(torch.uint8)
        # Behind the end of a clip its scores stay as they are.
        score = torch.where((frame < frames)[:, None], best + emitted[:, frame], score)
    return _walked_back(score, came_from, states, counts, optional, frames)


def _states(phonemes: Sequence[NDArray[np.uint8]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the phonemes of each clip between two silences, padded with silence, and their numbers."""
    longest = max(len(ids) for ids in phonemes) + 2
    states = np.full((len(phonemes), longest), SILENCE, dtype=np.int64)
    for row, ids in zip(states, phonemes, strict=True):
        row[1 : len(ids) + 1] = ids
    counts = np.array([len(ids) + 2 for ids in phonemes])
    return torch.from_numpy(states).to(device), torch.from_numpy(counts).to(device)


def _allowed_steps(optional: Tensor) -> dict[int, Tensor]:
    """Return, for each number of phonemes to advance by, whether a phoneme may be reached so (clips, states)."""
    everywhere = torch.ones_like(optional)
    steps, skippable = {0: everywhere, 1: everywhere}, everywhere
    for step in range(2, MAX_SKIPPED + 2):
        skippable = skippable & _shifted(optional, step - 1, False)
        steps[step] = skippable
    return steps


def _reachable_first(optional: Tensor) -> Tensor:
    """Return the phonemes that a clip may begin with: those that only optional ones precede."""
    before = torch.cumprod(_shifted(optional, 1, True).long(), 1).bool()
    return before & (torch.arange(optional.shape[1], device=optional.device) <= MAX_SKIPPED)


def _shifted(values: Tensor, by: int, fill: float = IMPOSSIBLE) -> Tensor:
    """Return (clips, states) moved to the right."""
    if by == 0:
        return values
    filled = torch.full_like(values[:, :by], fill)
    return torch.cat([filled, values[:, :-by]], dim=1)


def _walked_back(
    score: Tensor, came_from: Tensor, states: Tensor, counts: Tensor, optional: Tensor, frames: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the phonemes and the mean log-probability of the best paths to a last phoneme."""
    place = torch.arange(states.shape[1], device=states.device)
    # After a last phoneme, only optional ones are left.
    left = torch.where(place < counts[:, None], (~optional).long(), 0).flip(1).cumsum(1).flip(1)
    after = left - torch.where(place < counts[:, None], (~optional).long(), 0)
    last = (after == 0) & (place < counts[:, None])
    total, state = score.masked_fill(~last, IMPOSSIBLE).max(1)
    found = torch.full((len(states), len(came_from)), SILENCE, device=states.device)
    rows = torch.arange(len(states), device=states.device)
    for frame in range(len(came_from) - 1, -1, -1):
        inside = frame < frames
        found[:, frame] = torch.where(inside, states[rows, state], SILENCE)
        state = torch.where(inside, state - came_from[frame, rows, state].long(), state)
    return found, total / frames
