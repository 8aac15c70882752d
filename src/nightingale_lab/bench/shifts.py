"""Find lost or repeated samples of a stream by comparing the position of each chunk with the whole.

A lost sample is not always visible in the stream alone (nightingale_lab.bench.seams). But the same mel can
also be rendered in one piece. After a lost sample everything comes one sample early, in every chunk, so no
threshold is needed. The stream need not equal the whole exactly: all samples of a chunk decide its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightingale.types import Samples

Array = NDArray[np.float64]

REACH_SAMPLES = 480
"""The largest shift that is searched, both ways: 20 ms."""
COMPARED_SAMPLES = 12_000
"""At most this much of a chunk is compared."""
QUIET = 1e-5
"""A chunk quieter than this, the last bit of 16, is not compared."""
TIE = 1e-9
"""Differences that count as equal; a pure tone matches at every period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftReport:
    missing: int
    """Samples that the stream lacks; negative if it repeats some."""
    boundaries: tuple[int, ...]
    """The first sample of each chunk, the first chunk's too."""
    shifts: tuple[int | None, ...]
    """Samples lost before each chunk; None if it is too quiet."""

    @property
    def slips(self) -> tuple[int, ...]:
        """Boundaries at which the shift changes."""
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
    """Compare a joined stream with the whole. boundaries: the first sample of each chunk but the first."""
    starts = sorted({0, *(n for n in boundaries if 0 < n < len(samples))})
    x, y = samples.astype(np.float64), whole.astype(np.float64)
    shifts = [
        _shift(x[start:end], y, start) for start, end in zip(starts, [*starts[1:], len(x)], strict=True)
    ]
    return ShiftReport(missing=len(y) - len(x), boundaries=tuple(starts), shifts=tuple(shifts))


def _shift(chunk: Array, whole: Array, start: int) -> int | None:
    """Return where the chunk lies in the whole, relative to `start`, by least squared difference."""
    chunk = chunk[:COMPARED_SAMPLES]
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
