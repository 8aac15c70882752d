"""Seeds, and random numbers by position: Philox4x32-10, with the same values in numpy, torch and Triton.

Philox (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011) is a bijection of
a 128-bit counter under a 64-bit key. It has no state: value n of a stream is computed from n alone. So the
same frame gets the same noise whether it is rendered alone, in a chunk or in a batch, and a seed means the same
on every backend.

Each purpose of a request has a key of its own (`stream_key`). Values of a key are addressed in two ways:

- `uniform`: value `id` of draw `draw` is lane `id % 4` of counter (id // 4, draw, 0, 0). For sampling tokens:
  only ids that are not masked are evaluated.
- `normal`: value n = row * width + column is lane n % 4 of the Box-Muller transform of counter (n // 4 mod
  2^32, n // 4 >> 32, 0, 0). For the noise of the flow (a row per mel frame) and of the vocoder (a row per
  sample).

The other implementations are in backends/cuda/random.py: bits and uniforms are equal bit for bit, normals to
float32 rounding (tests/backends/cuda/test_random.py).
"""

from __future__ import annotations

import hashlib
import math
import secrets
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightingale.request_options import SEED_LIMIT

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MASK = 0xFFFFFFFF

_MULTIPLIERS = np.array(MULTIPLIERS, np.uint64)[:, None]
_DENSE_IDS = 256
"""From so many ids on, `uniform` computes all blocks up to the largest id: a quarter as many blocks."""

_Words = NDArray[np.uint32]


def fresh_seed() -> int:
    """Return a random seed for a request that names none."""
    return secrets.randbelow(SEED_LIMIT)


def nth_seed(seed: int, segment: int) -> int:
    """Return the seed of one segment of a long request. The first segment keeps the request's seed."""
    return _hash_of(f"{seed}/segment/{segment}", 4) if segment else seed


def retry_seed(seed: int, attempt: int) -> int:
    """Return the seed of an attempt, counted from 0. The first attempt keeps the segment's seed."""
    return _hash_of(f"{seed}/attempt/{attempt}", 4) if attempt else seed


def stream_key(seed: int, purpose: str) -> int:
    """Return the key of one purpose of one request, an unsigned 64-bit number.

    >>> hex(stream_key(7, "tokens"))
    '0x3a48c18aaa44b257'
    """
    return _hash_of(f"{seed}/{purpose}", 8)


def _hash_of(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "little")


def philox(counters: Any, key: int) -> _Words:
    """Return the random bits of n counters, which are given as four words of n numbers each: (n, 4)."""
    even, odd = _rounds(counters, key)
    lanes = np.empty((len(counters[0]), 2, 2), np.uint32)
    lanes[:, :, 0], lanes[:, :, 1] = even.T, odd.T
    return lanes.reshape(-1, 4)


def uniform(key: int, draw: int, ids: NDArray[Any]) -> NDArray[np.float64]:
    """Return one number between 0 and 1, both excluded, for each id (n,) of one draw: (n,).

    Any subset of ids gives the values that these ids have among all. Values are odd multiples of 2^-33.
    """
    ids = np.asarray(ids)
    if len(ids) >= _DENSE_IDS:
        dense = uniform_rows(key, draw, 1, int(ids.max()) + 1)[0]
        return np.take(dense, ids)
    lanes = philox((ids >> 2, np.uint32(draw), 0, 0), key)
    return _to_uniform(lanes[np.arange(len(ids)), ids & 3])


def first_uniforms(key: int, count: int) -> list[float]:
    """Return `uniform` of draw 0 and the ids 0 … count - 1, without numpy: its calls take longer for so few."""
    values: list[float] = []
    for counter in range(-(-count // 4)):
        a, b, c, d = counter, 0, 0, 0
        low, high = key & MASK, key >> 32
        for _ in range(ROUNDS):
            left, right = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
            a, b, c, d = (right >> 32) ^ b ^ low, right & MASK, (left >> 32) ^ d ^ high, left & MASK
            low, high = (low + KEY_INCREMENTS[0]) & MASK, (high + KEY_INCREMENTS[1]) & MASK
        values += [(bits + 0.5) * 2.0**-32 for bits in (a, b, c, d)]
    return values[:count]


def uniform_rows(key: int, first_draw: int, count: int, width: int) -> NDArray[np.float64]:
    """Return `uniform` of the ids 0 … width - 1 for `count` consecutive draw numbers: (count, width)."""
    blocks = -(-width // 4)
    numbers = np.repeat(np.arange(first_draw, first_draw + count, dtype=np.uint32), blocks)
    lanes = philox((np.tile(np.arange(blocks, dtype=np.uint32), count), numbers, 0, 0), key)
    return _to_uniform(lanes.reshape(count, 4 * blocks)[:, :width])


def normal(key: int, first_row: int, rows: int, width: int) -> NDArray[np.float32]:
    """Return standard normal numbers by absolute row, (rows, width) float32.

    Reading rows in any chunks gives the same values. Rows are counted from the start of the utterance.
    """
    first, last = first_row * width, (first_row + rows) * width
    blocks = np.arange(first >> 2, (last + 3) >> 2, dtype=np.uint64)
    even, odd = _rounds((blocks & np.uint64(MASK), blocks >> np.uint64(32), 0, 0), key)
    radius = even.astype(np.float32)
    radius *= np.float32(2.0**-32)
    radius += np.float32(2.0**-33)  # never zero
    np.log(radius, out=radius)
    radius *= np.float32(-2)
    np.sqrt(radius, out=radius)
    angle = odd.astype(np.float32)
    angle *= np.float32(2 * math.pi * 2.0**-32)
    values = np.empty((len(blocks), 2, 2), np.float32)
    np.multiply(radius, np.cos(angle), out=values[:, :, 0].T)
    np.multiply(radius, np.sin(angle), out=values[:, :, 1].T)
    start = first & 3
    return values.reshape(-1)[start : start + last - first].reshape(rows, width)


def _to_uniform(bits: _Words) -> NDArray[np.float64]:
    return (bits.astype(np.float64) + 0.5) * 2.0**-32


def _rounds(counters: Any, key: int) -> tuple[NDArray[np.uint64], _Words]:
    """Return lanes 0 and 2 (2, n), and lanes 1 and 3 (2, n), of n counters given as four words.

    Both products of a round are one call of numpy, whose high and low words are views. That matters:
    for the few ids of a draw the calls are all the cost.
    """
    n = len(counters[0])
    even, odd = np.empty((2, n), np.uint64), np.empty((2, n), np.uint32)
    even[0], odd[0], even[1], odd[1] = counters
    product = np.empty((2, n), np.uint64)
    crossed = product.view(np.uint32).reshape(2, n, 2)[::-1]
    low, high = (crossed[..., 0], crossed[..., 1])
    for round_key in _round_keys(key):
        np.multiply(even, _MULTIPLIERS, out=product)
        np.bitwise_xor(odd, round_key, out=odd)
        np.bitwise_xor(odd, high, out=odd)
        even[...] = odd
        odd[...] = low
    return even, odd


@lru_cache(maxsize=256)
def _round_keys(key: int) -> NDArray[np.uint32]:
    """Return both words of the key in each round: (rounds, 2, 1)."""
    number = np.arange(ROUNDS, dtype=np.uint64)[:, None]
    words = np.array([key & MASK, key >> 32], np.uint64) + number * np.array(KEY_INCREMENTS, np.uint64)
    return words.astype(np.uint32)[:, :, None]
