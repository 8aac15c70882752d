"""The constant matrices of the frame-rate vocoder, in numpy: its transforms, and the mel's bands as bins.

PyTorch, MLX and ONNX Runtime compute with these same arrays.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from nightingale.clocks import CLOCKS
from nightingale.models.frame_vocoder.config import BINS, HOP_SAMPLES, WINDOW_SAMPLES
from nightingale.models.layers.mel_config import FLOW_MEL, slaney_triangles

Matrix = NDArray[np.float32]


def hann_window() -> NDArray[np.float64]:
    """Return the periodic Hann window."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW_SAMPLES) / WINDOW_SAMPLES)


def tone_gain() -> float:
    """Return the gain with which a harmonic of amplitude 1 has a magnitude of 1 in its bin."""
    return 2.0 / float(hann_window().sum())


def noise_gain() -> float:
    """Return the gain with which white noise of variance 1 has a mean power of 1 in each bin."""
    return float(np.square(hann_window()).sum()) ** -0.5


@cache
def matrices(mel_bands: int) -> dict[str, Matrix]:
    """Return the matrices by the names of the network's buffers."""
    return {"analysis": analysis(), "synthesis": synthesis(), "to_bins": bands_to_bins(mel_bands)}


def analysis() -> Matrix:
    """Return the windowed DFT (480, 2·bins), real parts first."""
    angle = _angles()
    return (np.concatenate([np.cos(angle), -np.sin(angle)], axis=1) * hann_window()[:, None]).astype(
        np.float32
    )


def synthesis() -> Matrix:
    """Return the windowed inverse DFT (2·bins, 480), real parts first.

    It also divides by the sum of the squared windows that overlap at a sample, which is constant.
    """
    angle, window = _angles(), hann_window()
    twice = np.full(BINS, 2.0)
    twice[[0, -1]] = 1.0  # the first and the last bin have no mirror image
    overlap = np.square(window).sum() / HOP_SAMPLES
    inverse = np.concatenate([np.cos(angle) * twice, -np.sin(angle) * twice], axis=1).T / WINDOW_SAMPLES
    return np.ascontiguousarray(inverse * window / overlap, np.float32)


def bands_to_bins(bands: int) -> Matrix:
    """Return the (bands, bins) matrix that interpolates between the centres of bands; constant beyond them."""
    triangles = slaney_triangles(FLOW_MEL).astype(np.float64)  # (bands, fft bins)
    hz = np.arange(triangles.shape[1]) * (FLOW_MEL.sample_rate_hz / FLOW_MEL.fft_samples)
    centres = (triangles * hz).sum(1) / triangles.sum(1)
    target = np.arange(BINS) * (CLOCKS.sample_rate_hz / WINDOW_SAMPLES)
    place = np.searchsorted(centres, target).clip(1, bands - 1)
    low, high = centres[place - 1], centres[place]
    share = ((target - low) / (high - low)).clip(0, 1)
    matrix = np.zeros((bands, BINS), np.float32)
    at = np.arange(BINS)
    matrix[place - 1, at] += 1 - share
    matrix[place, at] += share
    return matrix


def _angles() -> NDArray[np.float64]:
    place = np.arange(WINDOW_SAMPLES, dtype=np.float64)[:, None]
    return place * np.arange(BINS, dtype=np.float64) * (2 * np.pi / WINDOW_SAMPLES)
