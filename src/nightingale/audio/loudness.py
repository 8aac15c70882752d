"""Integrated loudness of a clip (ITU-R BS.1770) and normalization to the loudness that a model expects.

The measure: apply K-weighting (two biquads), take the power of 400 ms blocks every 100 ms, drop blocks under
-70 LUFS, then blocks 10 LU under the mean, and average the rest.

The filters are applied in the frequency domain, which is a circular convolution. So each segment starts with
half a second of the samples before it, which absorbs the wrap-around: the slowest pole pair (38 Hz, Q 1/2) has
decayed by exp(-2·pi·38·0.5) < 1e-51 by then.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nightingale.audio.samples import Samples

BLOCK_S = 0.4
BLOCK_STEP = 0.25
"""Distance between the starts of two blocks, in blocks."""
ABSOLUTE_GATE_LUFS = -70.0
RELATIVE_GATE_LU = -10.0

_OFFSET_LU = -0.691
_PAST_S = 0.5

_Floats = NDArray[np.float64]


def normalize_loudness(samples: Samples, rate_hz: int, target_lufs: float) -> Samples:
    """Scale the samples to the target; a clip whose loudness cannot be measured is returned unchanged."""
    loudness = integrated_loudness(samples, rate_hz)
    if not math.isfinite(loudness):
        return samples
    return samples * np.float32(10.0 ** ((target_lufs - loudness) / 20.0))


def integrated_loudness(samples: Samples, rate_hz: int) -> float:
    """Return the gated loudness of a mono clip in LUFS; -inf if it is silent or shorter than one block."""
    if len(samples) < BLOCK_S * rate_hz:
        return -math.inf
    power = _block_power(_k_weight(samples, rate_hz), rate_hz)
    with np.errstate(divide="ignore"):
        block_lufs = _OFFSET_LU + 10.0 * np.log10(power)
    audible = block_lufs >= ABSOLUTE_GATE_LUFS
    if not audible.any():
        return -math.inf
    relative_gate = _OFFSET_LU + 10.0 * math.log10(power[audible].mean()) + RELATIVE_GATE_LU
    counted = (block_lufs > relative_gate) & (block_lufs > ABSOLUTE_GATE_LUFS)
    return _OFFSET_LU + 10.0 * math.log10(power[counted].mean()) if counted.any() else -math.inf


def _block_power(weighted: _Floats, rate_hz: int) -> _Floats:
    blocks = round((len(weighted) / rate_hz - BLOCK_S) / (BLOCK_S * BLOCK_STEP)) + 1
    start = np.arange(blocks) * BLOCK_STEP
    # PARITY: block edges are truncated float products, and a last block that runs over the end is still
    #         divided by a whole block, as pyloudnorm does.
    #         tests/audio/test_loudness.py::test_loudness_equals_pyloudnorm
    lower = (BLOCK_S * start * rate_hz).astype(np.int64)
    upper = np.minimum((BLOCK_S * (start + 1) * rate_hz).astype(np.int64), len(weighted))
    energy = np.concatenate(([0.0], np.cumsum(np.square(weighted))))
    return (energy[upper] - energy[lower]) / (BLOCK_S * rate_hz)


def _k_weight(samples: Samples, rate_hz: int) -> _Floats:
    """Return the K-weighted clip, filtered segment by segment."""
    past = math.ceil(_PAST_S * rate_hz)
    size = 1 << (8 * past - 1).bit_length()
    segment = size - past
    grid = np.exp(-2j * math.pi * np.arange(size // 2 + 1) / size)
    response = _high_shelf(grid, rate_hz) * _high_pass(grid, rate_hz)
    padded = np.concatenate((np.zeros(past), samples))
    out = [
        np.fft.irfft(np.fft.rfft(padded[at : at + size], size) * response, size)[past:]
        for at in range(0, len(samples), segment)
    ]
    return np.concatenate(out)[: len(samples)]


def _high_shelf(z: NDArray[np.complex128], rate_hz: int) -> NDArray[np.complex128]:
    """Return the response of the +4 dB shelf above 1.5 kHz; `z` holds z^-1 on the unit circle."""
    gain = 10 ** (4.0 / 40)
    turn = 2 * math.pi * 1500.0 / rate_hz
    cos, width = math.cos(turn), 2 * math.sqrt(gain) * math.sin(turn) / math.sqrt(2)
    more, less = gain + 1, gain - 1
    top = (more + less * cos + width) - 2 * (less + more * cos) * z + (more + less * cos - width) * z**2
    bottom = (more - less * cos + width) + 2 * (less - more * cos) * z + (more - less * cos - width) * z**2
    return gain * top / bottom


def _high_pass(z: NDArray[np.complex128], rate_hz: int) -> NDArray[np.complex128]:
    """Return the response of the high-pass filter at 38 Hz."""
    turn = 2 * math.pi * 38.0 / rate_hz
    cos, width = math.cos(turn), math.sin(turn)
    return (1 + cos) / 2 * (1 - z) ** 2 / ((1 + width) - 2 * cos * z + (1 - width) * z**2)
