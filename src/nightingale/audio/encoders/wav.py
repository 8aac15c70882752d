"""Mono WAV, 16-bit by default or 32-bit float, as bytes."""

from __future__ import annotations

import struct

import numpy as np

from nightingale.errors import OutputError
from nightingale.types import AudioChunk, Samples

_PCM, _FLOAT = 1, 3  # WAVE_FORMAT tags


def wav_bytes(samples: Samples, sample_rate_hz: int, *, as_float: bool = False) -> bytes:
    """A whole WAV file. 16-bit clips at full scale; float keeps every bit."""
    check_samples(samples)
    if as_float:
        data = np.ascontiguousarray(samples, dtype="<f4").tobytes()
        # A format other than PCM must count its samples in a fact chunk and say its extension is empty.
        fact = struct.pack("<4sII", b"fact", 4, len(samples))
        tag, sample_bytes, extension = _FLOAT, 4, struct.pack("<H", 0)
    else:
        data = AudioChunk(samples=samples, sample_rate_hz=sample_rate_hz).pcm16
        tag, sample_bytes, extension, fact = _PCM, 2, b"", b""
    byte_rate = sample_rate_hz * sample_bytes
    form = (
        struct.pack("<HHIIHH", tag, 1, sample_rate_hz, byte_rate, sample_bytes, sample_bytes * 8) + extension
    )
    body = (
        b"WAVE"
        + struct.pack("<4sI", b"fmt ", len(form))
        + form
        + fact
        + struct.pack("<4sI", b"data", len(data))
        + data
    )
    return struct.pack("<4sI", b"RIFF", len(body)) + body


def check_samples(samples: Samples) -> None:
    """Refuse what would be written as a bang or as nothing."""
    if samples.ndim != 1 or not np.isfinite(samples).all():
        raise OutputError(
            "these samples are not a recording",
            got=f"shape {samples.shape}, {int((~np.isfinite(samples)).sum())} not finite",
            allowed="one axis of finite numbers",
            fix="This is a fault in the model or its weights; run `nightingale doctor`.",
        )
