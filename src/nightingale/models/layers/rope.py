"""Rotary position embeddings, half-split: channel i is rotated together with channel i + width/2."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FACTOR, LOW, HIGH, ORIGINAL_CONTEXT = 8.0, 1.0, 4.0, 8192
"""Llama 3's frequency scaling, for contexts longer than the one of its first training stage."""


def inverse_frequencies(width: int, *, theta: float, scaling: bool) -> Tensor:
    """Return the radians per position of each channel pair: (width / 2,), with Llama 3's scaling or without."""
    # On the CPU even when a model is built on the meta device: no checkpoint contains them.
    plain = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float32, device="cpu") / width)
    if not scaling:
        return plain
    turns = ORIGINAL_CONTEXT * plain / (2 * math.pi)
    blend = ((turns - LOW) / (HIGH - LOW)).clamp(0, 1)
    return (1 - blend) * plain / FACTOR + blend * plain


def rotations(inverse: Tensor, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosines and sines for `positions` (…, time): each (…, time, width)."""
    angle = positions[..., None].to(inverse.dtype) * inverse
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate (rows, heads, time, width) by angles given as (time, width) or (rows, 1, time, width)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
