"""Did a stream lose or repeat a sample? Each chunk is laid beside the whole, and must lie where it belongs.

A lost sample cannot always be seen in the sound itself (nightingale_lab.bench.seams): where a voice hardly moves
from one sample to the next it leaves no trace, and a voice's own period varies by more. But whoever makes the
stream can also make the whole: the same mel, rendered in one piece. From a lost sample on, all that follows
comes one sample early, in every harmonic of every chunk; there is no threshold to choose. It makes no
difference that the stream may not be the whole exactly: where a chunk lies is told by all of its samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightingale.types import Samples

Array = NDArray[np.float64]

REACH_SAMPLES = 480
"""How far from its place a chunk is looked for, both ways: 20 ms."""
LOOKED_AT_SAMPLES = 12_000
"""As much of a chunk is compared; half a second tells enough."""
QUIET = 1e-5
"""In a chunk whose samples are below this, the last bit of 16, there is nothing to compare."""
TIE = 1e-9
"""A difference in likeness that is none; a pure tone looks alike a period further on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftReport:
    missing: int
    """Samples of the whole that the stream does not have; negative if it has some twice."""
    boundaries: tuple[int, ...]
    """The first sample of each chunk, the first chunk's too."""
    shifts: tuple[int | None, ...]
    """By chunk: how many samples were missing before it. None where it is too quiet to tell."""

    @property
    def slips(self) -> tuple[int, ...]:
        """Boundaries after which chunks lie elsewhere than before."""
        found, before = [], 0
        for place, shift in zip(self.boundaries, self.shifts, strict=True):
            if shift is not None and shift != before:
                found.append(place)
                before = shift
        return tuple(found)

    @property
    def clean(self) -> bool:
        return self.missing == 0 and not self.slips


def shift_report(samples: Samples, boundaries: Sequence[int], whole: Samples) -> ShiftReport:
    """samples: the joined stream. boundaries: the first sample of each chunk but the first."""
    starts = sorted({0, *(n for n in boundaries if 0 < n < len(samples))})
    x, y = samples.astype(np.float64), whole.astype(np.float64)
    shifts = [
        _shift(x[start:end], y, start) for start, end in zip(starts, [*starts[1:], len(x)], strict=True)
    ]
    return ShiftReport(missing=len(y) - len(x), boundaries=tuple(starts), shifts=tuple(shifts))


def _shift(chunk: Array, whole: Array, start: int) -> int | None:
    """Where the chunk lies in the whole, relative to `start`: the place with the least squared difference."""
    chunk = chunk[:LOOKED_AT_SAMPLES]
    first = max(0, start - REACH_SAMPLES)
    around = whole[first : start + len(chunk) + REACH_SAMPLES]
    if len(around) < len(chunk) or not len(chunk) or np.sqrt(np.mean(chunk**2)) < QUIET:
        return None
    power = np.concatenate([[0.0], np.cumsum(around**2)])
    energy = power[len(chunk) :] - power[: len(power) - len(chunk)]
    difference = energy - 2 * np.correlate(
        around, chunk, "valid"
    )  # the chunk's own energy is the same for all
    alike = np.flatnonzero(difference <= difference.min() + TIE * np.sum(chunk**2))
    places = alike + first - start
    return int(places[np.argmin(np.abs(places))])
