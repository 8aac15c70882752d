"""Mel spectrograms for two judges (Slaney scale, area-normalized), in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

LINEAR_HZ_PER_MEL = 200.0 / 3.0
LOG_START_HZ = 1000.0
LOG_STEP = np.log(6.4) / 27.0
"""Slaney's scale is linear up to 1 kHz and logarithmic above."""


def hz_to_mel(hz: NDArray[np.float64]) -> NDArray[np.float64]:
    above = LOG_START_HZ / LINEAR_HZ_PER_MEL + np.log(np.maximum(hz, 1.0) / LOG_START_HZ) / LOG_STEP
    return np.where(hz < LOG_START_HZ, hz / LINEAR_HZ_PER_MEL, above)


def mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    above = LOG_START_HZ * np.exp(LOG_STEP * (mel - LOG_START_HZ / LINEAR_HZ_PER_MEL))
    return np.where(mel < LOG_START_HZ / LINEAR_HZ_PER_MEL, mel * LINEAR_HZ_PER_MEL, above)


def mel_filters(*, rate_hz: int, fft_size: int, bands: int) -> Array:
    """Return triangles of unit area between 0 Hz and half the rate: (bands, fft_size // 2 + 1)."""
    bins_hz = np.arange(fft_size // 2 + 1) * (rate_hz / fft_size)
    top = hz_to_mel(np.array([rate_hz / 2.0]))[0]
    edges_hz = mel_to_hz(np.linspace(0.0, top, bands + 2))
    low, centre, high = (edges_hz[i : i + bands, None] for i in range(3))
    rising = (bins_hz - low) / (centre - low)
    falling = (high - bins_hz) / (high - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.asarray(triangles * (2.0 / (high - low)), dtype=np.float32)


def mel_power(samples: Array, *, rate_hz: int, fft_size: int, hop: int, bands: int) -> Array:
    """Return the mel power of centred, Hann-windowed frames: (frames, bands)."""
    padded = np.pad(samples, fft_size // 2)
    count = 1 + (len(padded) - fft_size) // hop
    frames = np.lib.stride_tricks.sliding_window_view(padded, fft_size)[: count * hop : hop]
    window = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(fft_size) / fft_size)
    power = np.abs(np.fft.rfft(frames * window, axis=1)) ** 2
    return np.asarray(
        power @ mel_filters(rate_hz=rate_hz, fft_size=fft_size, bands=bands).T, dtype=np.float32
    )
