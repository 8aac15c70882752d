"""The two resamplers of voice cloning.

Upstream uses two, and a prompt made with the wrong one gives another voice: soxr for the user's clip
(`resample`), and a short windowed sinc from the flow's 24 kHz to the 16 kHz of the x-vector network and the
speech tokenizer (`resample_sinc`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nightingale.audio.samples import Samples

SINC_ZERO_CROSSINGS = 6
SINC_ROLLOFF = 0.99


def resample(samples: Samples, from_hz: int, to_hz: int) -> Samples:
    """Resample with soxr's high quality to exactly ceil(length * ratio) samples."""
    if from_hz == to_hz:
        return samples
    import soxr  # late, because the training machine lacks it and needs only the filters below

    # PARITY: the ratio is rounded before the product, as librosa does; the exact quotient can be one less.
    #         tests/audio/test_resample.py::test_length_is_the_rounded_ratio_times_the_length
    length = math.ceil(len(samples) * (float(to_hz) / from_hz))
    out: Samples = np.asarray(soxr.resample(samples, from_hz, to_hz, quality="HQ"), dtype=np.float32)
    return np.pad(out[:length], (0, max(0, length - len(out))))


def resample_sinc(samples: Samples, from_hz: int, to_hz: int) -> Samples:
    """Resample with a Hann-windowed sinc of six zero crossings: `up` fixed filters, applied every `down` samples."""
    if from_hz == to_hz:
        return samples
    common = math.gcd(from_hz, to_hz)
    down, up = from_hz // common, to_hz // common
    filters, reach = sinc_filters(down, up)  # (up, taps)
    padded = np.pad(samples, (reach, reach + down))
    windows = np.lib.stride_tricks.sliding_window_view(padded, filters.shape[1])[::down]
    out = np.ascontiguousarray(windows) @ filters.T  # (windows, up)
    return out.reshape(-1)[: math.ceil(up * len(samples) / down)]


def sinc_filters(down: int, up: int) -> tuple[NDArray[np.float32], int]:
    """Return the `up` filters as rows, and the number of input samples they reach to each side."""
    cutoff = min(down, up) * SINC_ROLLOFF
    reach = math.ceil(SINC_ZERO_CROSSINGS * down / cutoff)
    # PARITY: torchaudio rounds the output's phase, alone, to float32; exact phases move samples by 1e-6.
    #         tests/audio/test_resample.py::test_sinc_equals_torchaudio
    phase = (np.arange(up, dtype=np.float32) / np.float32(up)).astype(np.float64)
    offset = np.arange(-reach, reach + down) / down - phase[:, None]
    crossing = np.clip(offset * cutoff, -SINC_ZERO_CROSSINGS, SINC_ZERO_CROSSINGS)
    window = np.cos(crossing * (math.pi / SINC_ZERO_CROSSINGS / 2)) ** 2
    return (np.sinc(crossing) * window * (cutoff / down)).astype(np.float32), reach
