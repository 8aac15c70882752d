"""Sizes of HiFT."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nightingale.clocks import CLOCKS
from nightingale.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class HiftConfig:
    """The vocoder. Defaults are the official model's; a smaller voice differs in widths and kernels."""

    mel_bands: int = 80
    base_channels: int = 512
    resblock_kernels: tuple[int, ...] = (3, 7, 11)
    source_kernels: tuple[int, ...] = (7, 7, 11)
    """One per upsampling stage."""
    f0_channels: int = 512
    harmonics: int = 9
    """The fundamental and its overtones in the excitation."""
    in_step: bool = False
    """All harmonics start together, so that they add up to a pulse a period; else the overtones' phases are
    random. Overtones of random phase were not used by a small vocoder: it learned weights near zero for them,
    and its voice had harmonics up to 1.5 kHz only (dev/LOG.md)."""
    sharpening: float = 0.0
    """How much more mel bands are made to stand out from their neighbours before they are sounded. A flow of
    few steps gives a mean of what it might have said, in which they stand out too little (sharpen.py)."""
    causal: bool = False
    """Only the first layers look ahead (`lookahead_frames`), so a stream needs no overlap."""

    def __post_init__(self) -> None:
        if prod(UPSAMPLE_RATES) * ISTFT_HOP != CLOCKS.samples_per_frame:
            raise ConfigError(
                "the vocoder's upsampling does not match the clocks",
                got=f"{UPSAMPLE_RATES} x {ISTFT_HOP}",
                allowed=f"a product of {CLOCKS.samples_per_frame} samples per frame",
                fix="Correct UPSAMPLE_RATES or ISTFT_HOP.",
            )


UPSAMPLE_RATES = (8, 5, 3)
UPSAMPLE_KERNELS = (16, 11, 7)
RESBLOCK_DILATIONS = (1, 3, 5)
ISTFT_SIZE = 16
ISTFT_HOP = 4
NOISY_HARMONICS = 9
"""So many carry noise of their own: all of the official model's."""
AUDIBLE_BELOW_HZ = 11_000.0
"""Overtones above this are left out, where there are more than the official nine; they would fold back."""
CAUSAL_LOOKAHEAD_FRAMES = 3
"""How many mel frames a causal vocoder needs beyond the one it renders."""
