"""Blocks of int8 weights: their sizes, and their codes. This file is free of torch."""

from __future__ import annotations

from typing import Final

from nightingale.errors import ConfigError

BLOCK_SIZES: Final = (128, 64, 32, 16)
"""Inputs per block, the fastest first; 256 is hardly faster than 128 and less precise."""
INT8_MAX: Final = 127
ZERO_POINT: Final = 128
"""Stored codes are unsigned; this one stands for zero."""


def block_size_for(inputs: int) -> int:
    """Return the largest block size that divides the number of inputs."""
    for block in BLOCK_SIZES:
        if inputs % block == 0:
            return block
    raise ConfigError(
        "a layer cannot be quantized to int8",
        got=f"{inputs} inputs",
        allowed=f"a multiple of {BLOCK_SIZES[-1]}",
        fix="Use a profile without int8 for this model.",
    )
