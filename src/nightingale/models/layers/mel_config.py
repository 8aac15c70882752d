"""Sizes and filters of the mel spectrograms that the networks take as input. This file is free of torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightingale.errors import BadReference


@dataclass(frozen=True, slots=True, kw_only=True)
class MelConfig:
    """Sizes of one mel spectrogram. The window is as long as the transform; `high_hz` is above 1 kHz."""

    sample_rate_hz: int
    fft_samples: int
    hop_samples: int
    bands: int
    high_hz: float = 8000.0


FLOW_MEL = MelConfig(sample_rate_hz=24_000, fft_samples=1920, hop_samples=480, bands=80)
TOKEN_MEL = MelConfig(sample_rate_hz=16_000, fft_samples=400, hop_samples=160, bands=128)
VOICE_MEL = MelConfig(sample_rate_hz=16_000, fft_samples=400, hop_samples=160, bands=40)
KALDI_FBANK = MelConfig(sample_rate_hz=16_000, fft_samples=512, hop_samples=160, bands=80)

LINEAR_HZ_PER_MEL, LINEAR_TOP_HZ, LINEAR_TOP_MEL = 200.0 / 3, 1000.0, 15.0
LOG_STEP = math.log(6.4) / 27.0
"""Slaney's scale."""


def slaney_triangles(config: MelConfig) -> NDArray[np.float32]:
    """Return (bands, bins): triangles of equal area on Slaney's scale, linear to 1 kHz, then logarithmic."""
    high = LINEAR_TOP_MEL + math.log(config.high_hz / LINEAR_TOP_HZ) / LOG_STEP
    mel = np.linspace(0.0, high, config.bands + 2)
    log_hz = LINEAR_TOP_HZ * np.exp(LOG_STEP * (mel - LINEAR_TOP_MEL))
    edges_hz = np.where(mel >= LINEAR_TOP_MEL, log_hz, mel * LINEAR_HZ_PER_MEL)
    bins_hz = np.arange(config.fft_samples // 2 + 1) * config.sample_rate_hz / config.fft_samples
    widths = np.diff(edges_hz)
    up = (bins_hz - edges_hz[:-2, None]) / widths[:-1, None]
    down = (edges_hz[2:, None] - bins_hz) / widths[1:, None]
    # PARITY: librosa rounds the triangles to float32 before it scales them.
    #         tests/models/encoders/test_mel_fronts.py::test_slaney_filters_equal_librosa
    triangles = np.maximum(np.minimum(up, down), 0.0).astype(np.float32).astype(np.float64)
    return (triangles * (2.0 / (edges_hz[2:] - edges_hz[:-2]))[:, None]).astype(np.float32)


def clip_too_short(samples: int, min_samples: int) -> BadReference:
    return BadReference(
        "the clip is too short to analyse",
        got=f"{samples} samples",
        allowed=f"at least {min_samples} samples",
        fix="Use a clip of a second or more.",
    )
