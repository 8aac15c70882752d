"""Random numbers by address: what the n-th draw of a stream is, without drawing those before it.

A graph cannot ask a generator on the host, and a generator on the GPU gives other numbers to other batches.
A hash of (key, index) gives each request its own, the same in any company, on any device and in any order.
The hash is SplitMix64, whose n-th output is a function of the seed and n by design.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def key_of(seed: int, purpose: str) -> int:
    """The key of one purpose of one request, as a signed 64-bit number."""
    digest = hashlib.sha256(f"{seed}/{purpose}/by address".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def bits(key: Tensor, index: Tensor) -> Tensor:
    """64 random bits for each (key, index), broadcast against each other; all are int64."""
    z = key + (index + 1) * _signed(_GAMMA)  # int64 products wrap, as they must
    z = (z ^ _shifted(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shifted(z, 27)) * _signed(_MIX_2)
    return z ^ _shifted(z, 31)


def uniform(key: Tensor, index: Tensor) -> Tensor:
    """float64 in [0, 1): multiples of 2^-32, so that no product with a double rounds up to that double."""
    return _shifted(bits(key, index), 32).double() * 2.0**-32


def normal(key: Tensor, index: Tensor) -> Tensor:
    """float32, standard normal: Box and Muller on the two halves of the bits."""
    both = bits(key, index)
    radius = (_shifted(both, 32).double() + 0.5) * 2.0**-32  # never zero
    angle = (both & 0xFFFFFFFF).double() * (2 * math.pi * 2.0**-32)
    return torch.sqrt(-2 * torch.log(radius.float())) * torch.cos(angle.float())


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shifted(z: Tensor, by: int) -> Tensor:
    """A logical shift: int64's own brings the sign along."""
    return (z >> by) & ((1 << (64 - by)) - 1)
