"""A synthetic reference clip, for encoders with random weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def clip(seconds: float, rate_hz: int, seed: int = 0) -> NDArray[np.float32]:
    """Return a harmonic series of varying pitch with pauses and a little noise, silent at both ends."""
    noise = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate_hz)) / rate_hz
    pitch_hz = 120 + 40 * np.sin(2 * np.pi * 0.7 * t) + 15 * np.sin(2 * np.pi * 3.1 * t + seed)
    phase = 2 * np.pi * np.cumsum(pitch_hz) / rate_hz
    voice = sum((np.sin(k * phase) / k for k in range(1, 25)), np.zeros_like(t))
    loudness = np.clip(np.sin(2 * np.pi * 1.3 * t) + 0.6, 0, None) * (t > 0.35) * (t < seconds - 0.4)
    return (0.12 * voice * loudness + 0.0015 * noise.standard_normal(len(t))).astype(np.float32)
