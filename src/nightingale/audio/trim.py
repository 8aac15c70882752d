"""Detection of quiet ends: a clip's sound spans the frames within 20 dB of the loudest one."""

from __future__ import annotations

import numpy as np

from nightingale.audio.samples import Samples

FRAME_SAMPLES = 2048
HOP_SAMPLES = 512
TOP_DB = 20.0
_FLOOR_POWER = 1e-10
"""Frames below this power count as equally silent, so that a silent clip is kept whole."""


def sound_span(samples: Samples, top_db: float = TOP_DB) -> tuple[int, int]:
    """Return the first sample, and one past the last, of the part that is loud enough, in whole hops."""
    power = np.maximum(frame_power(samples), _FLOOR_POWER)
    loud = np.flatnonzero(power > power.max() * 10 ** (-top_db / 10))
    return int(loud[0]) * HOP_SAMPLES, min(len(samples), (int(loud[-1]) + 1) * HOP_SAMPLES)


def frame_power(samples: Samples) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the mean square of each frame, centred every 512 samples, with zeros beyond the ends."""
    overlap = FRAME_SAMPLES // HOP_SAMPLES
    frames = 1 + len(samples) // HOP_SAMPLES
    padded = np.zeros((frames + overlap - 1) * HOP_SAMPLES + FRAME_SAMPLES)
    padded[FRAME_SAMPLES // 2 :][: len(samples)] = samples
    hops = np.square(padded[: (frames + overlap - 1) * HOP_SAMPLES]).reshape(-1, HOP_SAMPLES).sum(axis=1)
    return np.convolve(hops, np.ones(overlap), mode="valid") / FRAME_SAMPLES
