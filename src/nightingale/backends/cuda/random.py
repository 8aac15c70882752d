"""Philox4x32-10 on tensors: the values of decoding/philox.py for a whole batch, on any device.

Keys are unsigned 64-bit numbers, which tensors hold as int64 of the same bits (`int64_key`). 32-bit words are
held in int64 too: torch has no arithmetic for unsigned words. Each round is then a dozen elementwise
operations; on a GPU the kernels in random_kernels.py do all rounds in one, if Triton is there.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nightingale.backends.cuda.triton_support import TritonKernels
from nightingale.decoding.philox import KEY_INCREMENTS, MASK, MULTIPLIERS, ROUNDS, stream_key


def int64_key(seed: int, purpose: str) -> int:
    """Return `stream_key` as the signed number with the same bits."""
    key = stream_key(seed, purpose)
    return key - (1 << 64) if key >> 63 else key


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: Tensor) -> tuple[Tensor, ...]:
    """Return the four random words of each counter, all int64 and broadcast against each other."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & MASK, _high(key)
    for _ in range(ROUNDS):
        # int64 products wrap; both words of the unsigned product are right all the same.
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = _high(second) ^ c1 ^ k0, second & MASK
        c2, c3 = _high(first) ^ c3 ^ k1, first & MASK
        k0, k1 = (k0 + KEY_INCREMENTS[0]) & MASK, (k1 + KEY_INCREMENTS[1]) & MASK
    return c0, c1, c2, c3


def uniform(key: Tensor, draw: Tensor, width: int) -> Tensor:
    """Return `decoding.philox.uniform` of ids 0 … width - 1: key, draw (slots,) -> (slots, width) float64."""
    block = torch.arange(-(-width // 4), device=key.device)
    zero = torch.zeros_like(block)
    lanes = philox((block, draw[:, None], zero, zero), key[:, None])
    bits = torch.stack(lanes, dim=-1).flatten(1)[:, :width]
    return (bits.double() + 0.5) * 2.0**-32


def normal(key: Tensor, first_row: Tensor, rows: int, width: int) -> Tensor:
    """Return `decoding.philox.normal` of each stream: key, first_row (batch,) -> (batch, width, rows)."""
    kernels = triton_kernels(key.device)
    if kernels is not None:
        values: Tensor = kernels.normal(key, first_row, rows, width)
        return values
    row = first_row[:, None, None] + torch.arange(rows, device=key.device)
    value = row * width + torch.arange(width, device=key.device)[:, None]
    block, lane = value >> 2, value & 3
    zero = torch.zeros_like(block)
    c0, c1, c2, c3 = philox((block & MASK, _high(block), zero, zero), key[:, None, None])
    radius = torch.where(lane < 2, c0, c2).float() * 2.0**-32 + 2.0**-33
    angle = torch.where(lane < 2, c1, c3).float() * (2 * math.pi * 2.0**-32)
    wave = torch.where(lane % 2 == 0, torch.cos(angle), torch.sin(angle))
    return torch.sqrt(-2 * torch.log(radius)) * wave


@cache
def triton_kernels(device: torch.device) -> Any:
    """Return the module random_kernels if its kernels run on this device, else None."""

    def load() -> Any:
        from nightingale.backends.cuda import random_kernels

        zero = torch.zeros(1, dtype=torch.int64, device=device)
        random_kernels.normal(zero, zero, 1, 4)
        return random_kernels

    return TritonKernels("auto", load, part="noise", default=device.type == "cuda").loaded


def _high(word: Tensor) -> Tensor:
    """Return the upper 32 of 64 bits."""
    return (word >> 32) & MASK
