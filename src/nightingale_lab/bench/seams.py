"""Find audible chunk boundaries: four measures at each boundary, compared with the same inside the chunks.

    step   |x[n] - x[n-1]|, relative to the usual step of the 20 ms around
    flux   mean change of the spectrum in dB, from the 10 ms before n to the 10 ms from n on
    hole   how many dB the 10 ms beside n are below the 10 ms on either side of them
    slip   how much worse linear prediction across n does than with one sample added or taken away there

The first two are weak: a lost sample in a smooth voice makes an ordinary step, and speech itself changes as
fast as a gap begins. Linear prediction from 32 neighbours knows the next step, but fails at every glottal
pulse, a hundred times a second. A slip divides that out: a pulse remains unpredictable wherever a sample is
inserted, a lost sample does not once it is put back. A hole is a gap shorter than any pause of speech.

A boundary is a seam if a measure there is far above the 99th percentile inside (`Measure.limit`). A fault at
every boundary may be smaller, so a stream also fails if more boundaries exceed that percentile than chance
allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma, log

import numpy as np
from numpy.typing import NDArray

from nightingale.types import Samples

Array = NDArray[np.float64]

ORDER = 32
FIT_SECONDS = 0.04
"""Prediction is fitted to this much audio around a place."""
FLUX_SECONDS = 0.01
FLOOR_DB = -90.0
STEP_SECONDS = 0.02
SPACING_SECONDS = 0.0025
"""The distance of the places inside a chunk, counted from its boundary. A vocoder's upsampling (4, 12 and 60
samples) leaves a faint pattern, so a boundary must be compared with places of the same phase."""
CLEARANCE_SECONDS = 0.005
"""The least distance of an inside place from a boundary."""
QUIET = 1e-5
"""Errors below this, the last bit of 16, do not count."""
CHANCE = 1e-4
LIMITS = {"step": 2.5, "flux": 2.3, "hole": 4.0, "slip": 1.2}
"""Multiples of the 99th percentile that a single boundary may reach. Of 8,590 boundaries placed in 20 clips
of untouched speech 3 exceeded them, all by their slip (docs/streaming.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One measure, inside and at the boundaries."""

    inside_p99: float
    limit: float
    at_boundaries: tuple[float, ...]

    @property
    def worst(self) -> float:
        return max(self.at_boundaries, default=0.0)

    @property
    def above(self) -> int:
        """Boundaries above the 99th percentile inside; one in a hundred is expected."""
        return sum(value > self.inside_p99 for value in self.at_boundaries)

    @property
    def too_often(self) -> bool:
        """True if chance puts so many boundaries above that percentile less than once in ten thousand."""
        count = len(self.at_boundaries)
        return 1.0 - sum(_binomial(k, count, 0.01) for k in range(self.above)) < CHANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class SeamReport:
    boundaries: tuple[int, ...]
    """The measured boundaries: those far enough from both ends."""
    step: Measure
    flux: Measure
    hole: Measure
    slip: Measure

    @property
    def seams(self) -> tuple[int, ...]:
        """Boundaries that exceed the limit of at least one measure."""
        return tuple(
            place
            for i, place in enumerate(self.boundaries)
            if any(measure.at_boundaries[i] > measure.limit for measure in self._measures)
        )

    @property
    def clean(self) -> bool:
        return not self.seams and not any(measure.too_often for measure in self._measures)

    @property
    def _measures(self) -> tuple[Measure, ...]:
        return self.step, self.flux, self.hole, self.slip


def seam_report(samples: Samples, boundaries: Sequence[int], rate_hz: int) -> SeamReport:
    """Measure a stream. boundaries: the first sample of each chunk but the first."""
    x = samples.astype(np.float64)
    margin = round(FIT_SECONDS * rate_hz) // 2 + ORDER + 1
    last = len(x) - margin
    judged = np.array(sorted({n for n in boundaries if margin <= n <= last}), dtype=np.int64)
    inside = _inside(judged, margin, last, rate_hz)
    measured = {}
    for name, values in _measures(x, np.concatenate([inside, judged]), rate_hz).items():
        p99 = float(np.percentile(values[: len(inside)], 99)) if len(inside) else 0.0
        at = tuple(float(value) for value in values[len(inside) :])
        measured[name] = Measure(inside_p99=p99, limit=LIMITS[name] * p99, at_boundaries=at)
    return SeamReport(boundaries=tuple(int(n) for n in judged), **measured)


def _binomial(k: int, count: int, share: float) -> float:
    """Return the binomial probability of k, by logarithms, since a book has many boundaries."""
    ways = lgamma(count + 1) - lgamma(k + 1) - lgamma(count - k + 1)
    return exp(ways + k * log(share) + (count - k) * log(1 - share))


def _inside(judged: NDArray[np.int64], first: int, last: int, rate_hz: int) -> NDArray[np.int64]:
    """Return places between the boundaries, each on the grid of the boundary before it."""
    spacing, clearance = round(SPACING_SECONDS * rate_hz), round(CLEARANCE_SECONDS * rate_hz)
    if not len(judged):
        return np.arange(first, max(last, first), spacing)
    before = judged[0] - np.arange(clearance, judged[0] - first + 1, spacing)
    after = [
        np.arange(start + clearance, end - clearance + 1, spacing)
        for start, end in zip(judged, [*judged[1:], last + clearance], strict=True)
    ]
    return np.concatenate([before, *after])


def _measures(x: Array, places: NDArray[np.int64], rate_hz: int) -> dict[str, Array]:
    return {
        "step": _step(x, places, round(STEP_SECONDS * rate_hz) // 2),
        "flux": _flux(x, places, round(FLUX_SECONDS * rate_hz)),
        "hole": _hole(x, places, round(FLUX_SECONDS * rate_hz)),
        "slip": _slip(x, places, round(FIT_SECONDS * rate_hz) // 2),
    }


def _around(x: Array, places: NDArray[np.int64], before: int, after: int) -> Array:
    """Return the samples around each place, (places, before + after); the place is column `before`."""
    columns: Array = x[places[:, None] + np.arange(-before, after)]
    return columns


def _step(x: Array, places: NDArray[np.int64], half: int) -> Array:
    steps = np.diff(_around(x, places, half + 1, half), axis=1)  # column `half` leads to the place itself
    usual = np.sqrt(np.mean(steps**2, axis=1)) + QUIET
    ratio: Array = np.abs(steps[:, half]) / usual
    return ratio


def _flux(x: Array, places: NDArray[np.int64], size: int) -> Array:
    window = np.hanning(size + 2)[1:-1]
    window /= window.sum() / 2
    floor = 10 ** (FLOOR_DB / 20)

    def spectrum_db(frames: Array) -> Array:
        level: Array = 20 * np.log10(np.maximum(np.abs(np.fft.rfft(frames * window, axis=1)), floor))
        return level

    before, after = _around(x, places, size, 0), _around(x, places, 0, size)
    change: Array = np.abs(spectrum_db(after) - spectrum_db(before)).mean(axis=1)
    return change


def _hole(x: Array, places: NDArray[np.int64], size: int) -> Array:
    blocks = _around(x, places, 2 * size, 2 * size).reshape(len(places), 4, size)
    level = 10 * np.log10(np.mean(blocks**2, axis=2) + 10 ** (FLOOR_DB / 10))
    depth = np.minimum(level[:, :-2], level[:, 2:]) - level[:, 1:-1]  # of the block before, of the one after
    deepest: Array = np.maximum(depth.max(axis=1), 0.0)
    return deepest


def _slip(x: Array, places: NDArray[np.int64], half: int) -> Array:
    filters = _whitening(_around(x, places, half, half))  # (places, ORDER + 1), first coefficient 1
    near = _around(x, places, ORDER + 1, ORDER + 1)
    # A sequence and its mirror image are predicted by the same filter: two views of one break.
    views = [_views(filters, near), _views(filters, near[:, ::-1])]
    asis, shorter, holed = (np.concatenate(pair, axis=1) for pair in zip(*views, strict=True))
    # With u in the hole, what is missed is holed + u·filter: the best u is had by projection.
    both = np.concatenate([filters, filters], axis=1)
    best = -(holed * both).sum(axis=1) / (both**2).sum(axis=1)
    longer = holed + best[:, None] * both
    floor = ORDER * QUIET**2
    power, less, more = ((missed**2).sum(axis=1) + floor for missed in (asis, shorter, longer))
    ratio: Array = np.sqrt(power / np.minimum(less, more))
    return ratio


def _views(filters: Array, near: Array) -> tuple[Array, Array, Array]:
    """Return the prediction errors after the middle of `near`: as it is, a sample less, a zero inserted."""
    past, future, zero = near[:, 1 : ORDER + 1], near[:, ORDER + 1 :], np.zeros((len(near), 1))
    rows = ([past, future[:, :-1]], [past, future[:, 1:]], [past, zero, future[:, :-1]])
    asis, shorter, holed = (_misses(filters, np.concatenate(row, axis=1)) for row in rows)
    return asis, shorter, holed


def _misses(filters: Array, rows: Array) -> Array:
    """Return each row filtered by its own whitening filter, where the filter has all of its past."""
    windows = np.lib.stride_tricks.sliding_window_view(rows, filters.shape[1], axis=1)
    missed: Array = np.einsum("ntk,nk->nt", windows, filters[:, ::-1])
    return missed


def _whitening(frames: Array) -> Array:
    """Return linear prediction by autocorrelation: (places, ORDER + 1) coefficients, the first of them 1."""
    size = frames.shape[1]
    spectrum = np.abs(np.fft.rfft(frames * np.hamming(size), n=2 * size, axis=1)) ** 2
    correlation = np.fft.irfft(spectrum, axis=1)[:, : ORDER + 1]
    correlation[:, 0] = correlation[:, 0] * (1 + 1e-7) + size * QUIET**2
    lags = np.abs(np.arange(ORDER)[:, None] - np.arange(ORDER)[None])
    solved = np.linalg.solve(correlation[:, lags], -correlation[:, 1:, None])[..., 0]
    return np.concatenate([np.ones((len(frames), 1)), solved], axis=1)
