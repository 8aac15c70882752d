"""Pitch by autocorrelation, precise enough to detect a monotone or a wrong octave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightingale.types import Samples

LOWEST_HZ, HIGHEST_HZ = 60.0, 420.0
WINDOW_SECONDS, HOP_SECONDS = 0.05, 0.01
VOICED = 0.6
"""The autocorrelation peak, corrected for overlap, above which a frame is voiced."""
OCTAVE_PREFERENCE = 0.9
"""The shortest period whose peak reaches this share of the highest is chosen; longer ones are multiples."""
QUIET_DB = -35.0
FINAL_FRAMES = 10
"""Voiced frames at the end of an utterance whose median is its final pitch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pitch:
    median_hz: float
    spread_semitones: float
    """Standard deviation; read speech has 2 to 4, a monotone less than 1."""
    voiced_share: float


def track_hz(samples: Samples, rate_hz: int) -> NDArray[np.float64]:
    """Return the pitch of each 10 ms frame, 0 where unvoiced."""
    size, hop = round(WINDOW_SECONDS * rate_hz), round(HOP_SECONDS * rate_hz)
    if len(samples) < size:
        return np.zeros(0)
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::hop].astype(np.float64)
    frames = frames - frames.mean(axis=1, keepdims=True)
    energy = np.mean(frames**2, axis=1)
    spectrum = np.abs(np.fft.rfft(frames, n=2 * size, axis=1)) ** 2
    correlation = np.fft.irfft(spectrum, axis=1)[:, :size]
    short, long = int(rate_hz / HIGHEST_HZ), int(rate_hz / LOWEST_HZ)
    overlap = 1.0 - np.arange(size) / size
    strength = (correlation / (correlation[:, :1] + 1e-12) / overlap)[:, short : long + 1]
    inner = strength[:, 1:-1]
    peaks = (inner >= strength[:, :-2]) & (inner >= strength[:, 2:])
    heights = np.where(peaks, inner, 0.0)
    best = heights.max(axis=1)
    chosen = np.argmax(heights >= OCTAVE_PREFERENCE * np.maximum(best, 1e-9)[:, None], axis=1)
    loud = 10.0 * np.log10(energy + 1e-12) > 10.0 * np.log10(np.percentile(energy, 95) + 1e-12) + QUIET_DB
    return np.where((best > VOICED) & loud, rate_hz / (chosen + 1 + short), 0.0)


def pitch_of(samples: Samples, rate_hz: int) -> Pitch:
    hz = track_hz(samples, rate_hz)
    voiced = hz[hz > 0]
    if not len(voiced):
        return Pitch(median_hz=0.0, spread_semitones=0.0, voiced_share=0.0)
    median = float(np.median(voiced))
    semitones = 12.0 * np.log2(voiced / median)
    near = semitones[np.abs(semitones) < 12.0]  # octave errors of the tracker
    return Pitch(median_hz=median, spread_semitones=float(np.std(near)), voiced_share=len(voiced) / len(hz))


def final_semitones(samples: Samples, rate_hz: int) -> float | None:
    """Return the pitch of the last voiced tenth of a second, in semitones over 1 Hz; None if little is voiced."""
    hz = track_hz(samples, rate_hz)
    voiced = hz[hz > 0]
    return float(np.median(12.0 * np.log2(voiced[-FINAL_FRAMES:]))) if len(voiced) > FINAL_FRAMES else None
