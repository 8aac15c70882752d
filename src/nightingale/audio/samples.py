"""The array type of audio samples and its conversion to 16-bit PCM."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]
"""Mono samples in [-1, 1], one axis."""


def pcm16(samples: Samples) -> bytes:
    """Return the samples as little-endian 16-bit integers; values outside [-1, 1] are clipped."""
    return (np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()
