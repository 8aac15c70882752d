"""Sizes and constants of HiFT. This file is free of torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HiftConfig:
    """Sizes of HiFT; the defaults are the official ones."""

    mel_bands: int = 80
    base_channels: int = 512
    resblock_kernels: tuple[int, ...] = (3, 7, 11)
    source_kernels: tuple[int, ...] = (7, 7, 11)
    """One per upsampling stage."""
    f0_channels: int = 512


UPSAMPLE_RATES = (8, 5, 3)
UPSAMPLE_KERNELS = (16, 11, 7)
RESBLOCK_DILATIONS = (1, 3, 5)
ISTFT_SIZE = 16
ISTFT_HOP = 4
HARMONICS = 9
"""Harmonics of the excitation, the fundamental included."""
