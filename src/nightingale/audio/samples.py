"""The array type of audio samples, and its conversion to 16-bit PCM and WAV."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nightingale.errors import OutputError

Samples = NDArray[np.float32]
"""Mono samples in [-1, 1], one axis."""
UNKNOWN_LENGTH: Final = 0xFFFFFFFF
"""The length in the header of a stream. Players, and OpenAI's own WAV streams, agree on this value."""
HEADER_BYTES: Final = 44


def pcm16(samples: Samples) -> bytes:
    """Return the samples as little-endian 16-bit integers; values outside [-1, 1] are clipped."""
    return (np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()


def wav_header(sample_rate_hz: int, data_bytes: int = UNKNOWN_LENGTH) -> bytes:
    """Return the 44 bytes before the samples."""
    riff_bytes = min(data_bytes + HEADER_BYTES - 8, UNKNOWN_LENGTH)
    pcm = (16, 1, 1, sample_rate_hz, 2 * sample_rate_hz, 2, 16)
    return struct.pack("<4sI8sIHHIIHH4sI", b"RIFF", riff_bytes, b"WAVEfmt ", *pcm, b"data", data_bytes)


def wav_bytes(samples: Samples, sample_rate_hz: int) -> bytes:
    """Return a whole WAV file."""
    check_samples(samples)
    data = pcm16(samples)
    return wav_header(sample_rate_hz, len(data)) + data


def check_samples(samples: Samples) -> None:
    """Raise `OutputError` unless the samples are one axis of finite numbers."""
    if samples.ndim != 1 or not np.isfinite(samples).all():
        raise OutputError(
            "these samples are not a recording",
            got=f"shape {samples.shape}, {int((~np.isfinite(samples)).sum())} not finite",
            allowed="one axis of finite numbers",
            fix="This is a fault in the model or its weights; run `nightingale doctor`.",
        )
