"""Levels of a book, the check of ACX, which many audiobook shops share, and the one gain that reaches it.

ACX asks of every file: RMS between -23 and -18 dB, peaks of at most -3 dB, a noise floor of at most -60 dB.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from nightingale.types import Samples

RMS_DB: Final = (-23.0, -18.0)
MAX_PEAK_DB: Final = -3.0
MAX_NOISE_DB: Final = -60.0
TARGET_RMS_DB: Final = -21.0
TARGET_PEAK_DB: Final = -4.5
"""Lower than allowed, since lossy formats and resampling move peaks: AAC at 64 kbit/s by 1 dB."""
MAX_LIMITING_DB: Final = 6.0
"""The most that the highest peak of a book is reduced by; with a louder one, the book stays quieter."""

_CEILING: Final = 10 ** (TARGET_PEAK_DB / 20)
_KNEE: Final = 10 ** ((TARGET_PEAK_DB - 3) / 20)
_STEP_S: Final = 0.01
_WINDOW_STEPS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Levels in decibels relative to full scale; minus infinity for silence."""

    rms_db: float
    """The level of everything, pauses included."""
    peak_db: float
    noise_db: float
    """The noise floor: the median over passages of each one's quietest 100 ms. The silence between passages,
    which is exactly zero, is left out, because it would hide the noise of the voice."""


class LevelMeter:
    """Measures audio that is added passage by passage."""

    def __init__(self, rate_hz: int) -> None:
        self._step = round(_STEP_S * rate_hz)
        self.energy, self.samples, self.peak = 0.0, 0, 0.0
        self.quietest = array("d")
        """The mean power of the quietest 100 ms of each passage."""

    def add(self, samples: Samples) -> None:
        """Add a passage."""
        squares = np.square(samples, dtype=np.float64)
        self.energy += float(squares.sum())
        self.samples += len(samples)
        self.peak = max(self.peak, float(np.abs(samples).max(initial=0.0)))
        steps = len(squares) // self._step
        if steps >= _WINDOW_STEPS:
            powers = squares[: steps * self._step].reshape(steps, self._step).mean(axis=1)
            windows = np.convolve(powers, np.full(_WINDOW_STEPS, 1 / _WINDOW_STEPS), "valid")
            self.quietest.append(float(windows.min()))

    def add_silence(self, samples: int) -> None:
        """Add a pause."""
        self.samples += samples

    def levels(self) -> Levels:
        """Return the levels of all that was added."""
        return joined_levels([self])


def joined_levels(meters: Iterable[LevelMeter]) -> Levels:
    """Return the levels of several parts together."""
    parts = list(meters)
    energy, samples = sum(part.energy for part in parts), sum(part.samples for part in parts)
    quietest = [power for part in parts for power in part.quietest]
    return Levels(
        rms_db=_decibels(energy / samples if samples else 0.0),
        peak_db=_decibels(max((part.peak for part in parts), default=0.0) ** 2),
        noise_db=_decibels(median(quietest) if quietest else 0.0),
    )


def book_gain_db(levels: Levels) -> float:
    """Return the gain that brings a book to ACX's level, or as near to it as its highest peak allows."""
    if not math.isfinite(levels.rms_db):
        return 0.0
    return min(TARGET_RMS_DB - levels.rms_db, TARGET_PEAK_DB + MAX_LIMITING_DB - levels.peak_db)


def limit_peaks(samples: Samples) -> Samples:
    """Return the samples with peaks rounded off below ACX's level. Those below -7.5 dB, nearly all, stay as they are.

    In a book of many hours a few peaks are 20 dB above the mean. Without this, they would keep all of it too quiet.
    """
    level = np.abs(samples)
    if level.max(initial=0.0) <= _KNEE:
        return samples
    margin = _CEILING - _KNEE
    limited = _KNEE + margin * np.tanh((level - _KNEE) / margin)
    return np.where(level > _KNEE, np.copysign(limited, samples), samples).astype(np.float32)


def acx_problems(levels: Levels) -> list[str]:
    """Return what ACX would refuse; nothing if it would refuse nothing."""
    low, high = RMS_DB
    found = []
    if not low <= levels.rms_db <= high:
        found.append(f"RMS {levels.rms_db:.1f} dB is not between {low:g} and {high:g} dB")
    if levels.peak_db > MAX_PEAK_DB:
        found.append(f"the peak of {levels.peak_db:.1f} dB is above {MAX_PEAK_DB:g} dB")
    if levels.noise_db > MAX_NOISE_DB:
        found.append(f"the noise floor of {levels.noise_db:.1f} dB is above {MAX_NOISE_DB:g} dB")
    return found


def _decibels(power: float) -> float:
    return 10 * math.log10(power) if power > 0 else -math.inf
