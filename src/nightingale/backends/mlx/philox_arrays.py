"""Philox4x32-10 on MLX arrays: the random numbers of decoding/philox.py, computed where they are used.

Bits are equal; numbers derived from them agree to float32 rounding. Metal has no float64, so a uniform number u
near 1 is kept as 1 - u, which loses nothing.
"""

from __future__ import annotations

import math

import mlx.core as mx

from nightingale.decoding.philox import KEY_INCREMENTS, MASK, MULTIPLIERS, ROUNDS

Words = tuple[mx.array, mx.array, mx.array, mx.array]


def key_words(*keys: int) -> mx.array:
    """Return 64-bit keys as (keys, 2) words, the low one first."""
    return mx.array([[key & MASK, key >> 32] for key in keys], mx.uint32)


def philox(counter: Words, key: tuple[mx.array, mx.array]) -> Words:
    """Return the four random words of each counter, all uint32 and broadcast against each other."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = (
            word.astype(mx.uint64) * mx.array(multiplier, mx.uint64)
            for word, multiplier in zip((c0, c2), MULTIPLIERS, strict=True)
        )
        c0, c1 = _high(second) ^ c1 ^ k0, second.astype(mx.uint32)
        c2, c3 = _high(first) ^ c3 ^ k1, first.astype(mx.uint32)
        k0, k1 = (k + mx.array(step, mx.uint32) for k, step in zip((k0, k1), KEY_INCREMENTS, strict=True))
    return c0, c1, c2, c3


def uniform_bits(keys: mx.array, numbers: mx.array, width: int) -> mx.array:
    """Return the bits of `decoding.philox.uniform` for ids 0 … width - 1: keys (n, 2), numbers (n,) -> (n, width)."""
    block = mx.arange(-(-width // 4), dtype=mx.uint32)[None]
    zero = mx.zeros_like(block)
    counter = (block, numbers.astype(mx.uint32)[:, None], zero, zero)
    lanes = philox(counter, (keys[:, :1], keys[:, 1:]))
    return mx.stack(list(mx.broadcast_arrays(*lanes)), axis=-1).reshape(len(keys), -1)[:, :width]


def gumbel(bits: mx.array) -> mx.array:
    """Return -log(-log u) of the uniform numbers u = (bits + 1/2) / 2³², in float32."""

    def scaled(words: mx.array) -> mx.array:
        return (words.astype(mx.float32) + 0.5) * 2.0**-32

    waits = mx.where(bits < 2**31, -mx.log(scaled(bits)), -mx.log1p(-scaled(~bits)))
    return -mx.log(waits)


def normal(key: mx.array, first_row: int, rows: int, width: int) -> mx.array:
    """Return `decoding.philox.normal`: standard normal numbers by absolute row, (rows, width). key: (2,)."""
    first, last = first_row * width, (first_row + rows) * width
    count = ((last + 3) >> 2) - (first >> 2)
    block = mx.arange(count).astype(mx.uint64) + mx.array(first >> 2, mx.uint64)
    zero = mx.zeros((count,), mx.uint32)
    c0, c1, c2, c3 = philox((block.astype(mx.uint32), _high(block), zero, zero), (key[0], key[1]))
    even, odd = mx.stack([c0, c2], axis=-1), mx.stack([c1, c3], axis=-1)
    radius = mx.sqrt(-2 * mx.log(even.astype(mx.float32) * 2.0**-32 + 2.0**-33))
    angle = odd.astype(mx.float32) * (2 * math.pi * 2.0**-32)
    values = mx.stack([radius * mx.cos(angle), radius * mx.sin(angle)], axis=-1).reshape(-1)
    start = first & 3
    return values[start : start + last - first].reshape(rows, width)


def _high(words: mx.array) -> mx.array:
    """Return the upper 32 of 64 bits."""
    return (words >> 32).astype(mx.uint32)
