"""Sizes and constants of HiFT. This file is free of torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HiftConfig:
    """Sizes of the vocoder; the defaults are the official ones."""

    mel_bands: int = 80
    base_channels: int = 512
    resblock_kernels: tuple[int, ...] = (3, 7, 11)
    source_kernels: tuple[int, ...] = (7, 7, 11)
    """One per upsampling stage."""
    f0_channels: int = 512
    harmonics: int = 9
    """Harmonics of the excitation, the fundamental included."""
    in_phase: bool = False
    """All harmonics start with phase zero, so that they add up to one pulse per period. Otherwise overtones have
    random phases, of which a small vocoder made no use (dev/log-archive.md)."""
    sharpening: float = 0.0
    """The gain of the contrast between neighbouring mel bands, which a flow of few steps makes too small
    (sharpen.py)."""
    causal: bool = False
    """Only the first layers look ahead (`CAUSAL_LOOKAHEAD_FRAMES`), so that a stream needs no overlap."""


UPSAMPLE_RATES = (8, 5, 3)
UPSAMPLE_KERNELS = (16, 11, 7)
RESBLOCK_DILATIONS = (1, 3, 5)
ISTFT_SIZE = 16
ISTFT_HOP = 4
NOISY_HARMONICS = 9
"""Harmonics with noise of their own: all of the official model's."""
MAX_HARMONIC_HZ = 11_000.0
"""Overtones above this are left out if there are more than the official nine; they would alias."""
CAUSAL_LOOKAHEAD_FRAMES = 3
"""The mel frames that a causal vocoder needs after the one it renders."""
