"""Decoding of every kind of file that the package writes."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import soundfile

RATE = 24_000
"""The rate of files without a header."""


def read_back(path: Path) -> tuple[np.ndarray, int]:
    if path.suffix in (".pcm", ".raw"):
        return np.fromfile(path, "<i2").astype(np.float32) / 32768, RATE
    if path.suffix != ".m4a":
        return soundfile.read(path, dtype="float32")
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
        return np.concatenate(frames), container.streams.audio[0].rate or 0
