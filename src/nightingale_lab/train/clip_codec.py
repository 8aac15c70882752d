"""A lossy transform codec for speech at 16 kHz, so that recordings fit a small transfer.

The training machine has only torch and numpy, so no usual audio codec can be decoded there. Frames of 40 ms
overlap by half and are transformed by an MDCT. Each group of 16 coefficients is divided by its own level and
rounded to small integers, which compress well: about 55 kbit/s at a signal-to-noise ratio of 18 dB in every group.
Coefficients above 7.6 kHz are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HOP = 320
"""20 ms at 16 kHz."""
KEPT, GROUP = 304, 16
STEP = 0.45
"""Size of a quantization step, as a fraction of the group's level."""
LEVELS_PER_OCTAVE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedClip:
    """One coded clip. levels: (frames, groups); codes: (frames, KEPT)."""

    levels: NDArray[np.int8]
    codes: NDArray[np.int8]


def encode(samples: NDArray[np.float32]) -> CodedClip:
    """Code samples in [-1, 1] at 16 kHz; a last part shorter than a hop is padded with zeros."""
    frames = -(-len(samples) // HOP) + 1
    padded = np.zeros((frames + 1) * HOP, np.float64)
    padded[HOP : HOP + len(samples)] = samples
    blocks = np.lib.stride_tricks.sliding_window_view(padded, 2 * HOP)[::HOP]
    spectrum = (blocks @ _transform())[:, :KEPT].reshape(frames, -1, GROUP)
    power = np.square(spectrum).mean(2)
    levels = np.clip(np.round(LEVELS_PER_OCTAVE * 0.5 * np.log2(power + 1e-12)), -127, 127).astype(np.int8)
    codes = np.round(spectrum / _step(levels)[..., None])
    return CodedClip(levels=levels, codes=np.clip(codes, -127, 127).astype(np.int8).reshape(frames, KEPT))


def decode(clip: CodedClip) -> NDArray[np.float32]:
    """Return the samples of a coded clip, a whole number of hops."""
    frames = len(clip.codes)
    spectrum = clip.codes.reshape(frames, -1, GROUP) * _step(clip.levels)[..., None]
    blocks = spectrum.reshape(frames, KEPT) @ _transform()[:, :KEPT].T
    samples = blocks[:-1, HOP:] + blocks[1:, :HOP]
    return np.asarray(samples.reshape(-1), dtype=np.float32)


def _step(levels: NDArray[np.int8]) -> NDArray[np.float64]:
    return np.asarray(STEP * 2.0 ** (levels.astype(np.float64) / LEVELS_PER_OCTAVE))


def _transform() -> NDArray[np.float64]:
    """Return the windowed MDCT, (2·HOP, HOP), orthonormal over overlapping frames."""
    n, k = np.arange(2 * HOP)[:, None] + 0.5, np.arange(HOP)[None] + 0.5
    window = np.sin(np.pi / (2 * HOP) * n)
    return np.asarray(window * np.sqrt(2 / HOP) * np.cos(np.pi / HOP * (n + HOP / 2) * k))
