"""Blocks of int8 and int4 weights: their sizes, and their codes. This file is free of torch."""

from __future__ import annotations

from typing import Final

from nightingale.errors import ConfigError

BLOCK_SIZES: Final = (128, 64, 32, 16)
"""Inputs per block, the fastest first; 256 is hardly faster than 128 and less precise."""
INT8_MAX: Final = 127
INT4_BLOCK, INT4_GROUP, INT4_MIN, INT4_MAX = 32, 4, -8, 7
"""A group is as many inputs as a dot-product instruction sums; a byte has the codes of two groups."""
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
