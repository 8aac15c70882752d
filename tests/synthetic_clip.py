"""A synthetic clip of speech-like audio, the same on every machine."""

from __future__ import annotations

import numpy as np

from nightingale.audio.samples import Samples


def voice_like(seconds: float, rate_hz: int) -> Samples:
    """Return a harmonic series with changing pitch, pauses, quiet ends and some noise."""
    t = np.arange(int(seconds * rate_hz)) / rate_hz
    pitch_hz = 120 + 40 * np.sin(2 * np.pi * 0.7 * t) + 15 * np.sin(2 * np.pi * 3.1 * t)
    phase = 2 * np.pi * np.cumsum(pitch_hz) / rate_hz
    voice = sum(np.sin(k * phase) / k for k in range(1, 25))
    envelope = np.clip(np.sin(2 * np.pi * 1.3 * t) + 0.6, 0, None) * (t > 0.3) * (t < seconds - 0.3)
    return (0.12 * voice * envelope + 0.0015 * scatter(len(t), 7)).astype(np.float32)


def scatter(count: int, seed: int) -> np.ndarray:
    """Return `count` numbers in [-1, 1) from an integer hash."""
    x = (np.arange(count, dtype=np.uint64) + np.uint64(seed)) * np.uint64(2654435761) % np.uint64(2**32)
    x ^= x >> np.uint64(15)
    x = x * np.uint64(2246822519) % np.uint64(2**32)
    x ^= x >> np.uint64(13)
    return x.astype(np.float64) / 2**31 - 1
