"""The spectrogram of a recording as PNG and its waveform as SVG, without an imaging library."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode

import numpy as np
from numpy.typing import NDArray

from nightingale.types import Samples
from nightingale_lab.bench.spectrogram import FLOOR_DB, spectrogram_db

BANDS, MOST_COLUMNS = 128, 480
SHADES = np.array(
    [(13, 8, 35), (60, 15, 110), (140, 41, 129), (222, 73, 104), (254, 159, 109), (252, 253, 191)],
    dtype=np.float64,
)
"""From quiet to loud."""
OUTLINE_POINTS = 240


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels (rows, columns, 3) as a PNG file."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + pixels[row].tobytes() for row in range(height))  # 0: no filter

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows, 9))
        + chunk(b"IEND", b"")
    )


def spectrogram_png(samples: Samples) -> bytes:
    """Return a spectrogram with low frequencies at the bottom; 80 dB from dark to light."""
    level = spectrogram_db(samples)[: 4 * BANDS].reshape(BANDS, 4, -1).mean(axis=1)
    keep = np.linspace(0, level.shape[1] - 1, min(MOST_COLUMNS, level.shape[1])).round().astype(int)
    loud = np.clip(1 - level[::-1, keep] / FLOOR_DB, 0.0, 1.0) * (len(SHADES) - 1)
    below = np.minimum(loud.astype(int), len(SHADES) - 2)
    part = (loud - below)[..., None]
    return png((SHADES[below] * (1 - part) + SHADES[below + 1] * part).astype(np.uint8))


def outline_svg(samples: Samples) -> str:
    """Return the peak of each interval, mirrored."""
    count = max(1, min(OUTLINE_POINTS, len(samples)))
    peaks = [float(np.abs(part).max(initial=0.0)) for part in np.array_split(samples, count)]
    top = max([*peaks, 1e-6])
    upper = [f"{i},{20 - 19 * peak / top:.1f}" for i, peak in enumerate(peaks)]
    lower = [f"{i},{20 + 19 * peak / top:.1f}" for i, peak in enumerate(peaks)][::-1]
    shape = " ".join(upper + lower)
    return (
        f'<svg class="outline" viewBox="0 0 {count} 40" preserveAspectRatio="none" aria-hidden="true">'
        f'<polygon points="{shape}"/></svg>'
    )


def data_uri(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{b64encode(data).decode()}"
