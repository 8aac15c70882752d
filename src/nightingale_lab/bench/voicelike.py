"""Synthetic speech-like samples, for checks that need a voice without a file."""

from __future__ import annotations

import numpy as np

from nightingale.types import Samples

HARMONICS = 39
FORMANTS = ((1.0, 550, 120, 90), (0.6, 1500, 250, 120), (0.3, 2600, 200, 180))
"""(gain, centre, swing, width), the last three in Hz."""


def voicelike(*, seconds: int = 3, rate_hz: int = 24_000, seed: int = 0) -> Samples:
    """Return pulses of varying pitch through moving formants, with varying loudness, a pause and hiss."""
    rng = np.random.default_rng(seed)
    count = seconds * rate_hz
    t = np.arange(count) / rate_hz
    pitch_hz = 130 + 25 * np.sin(2 * np.pi * 0.7 * t + seed)
    cycles = np.cumsum(pitch_hz) / rate_hz
    x = np.zeros(count)
    for k in range(1, HARMONICS + 1):
        hz = k * pitch_hz
        formants = sum(
            gain / (1 + ((hz - at - swing * np.sin(2 * np.pi * 1.3 * t)) / width) ** 2)
            for gain, at, swing, width in FORMANTS
        )
        x += formants * np.cos(2 * np.pi * k * cycles + 0.3 * k)
    hiss = np.diff(rng.standard_normal(count + 1))
    pause = np.clip(8 * np.abs(t - 0.7 * seconds), 0, 1)
    loudness = np.clip(1.2 + np.sin(2 * np.pi * 1.1 * t), 0, 2) * pause
    voice: Samples = (0.05 * loudness * x + 0.0005 * hiss).astype(np.float32)
    return voice
