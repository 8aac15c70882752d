"""Randomness that belongs to a request.

Every draw of a request comes from its seed, each purpose with a stream of its own, so that drawing more of
one never shifts another. Noise is read by absolute position, in blocks of fixed size: the same frame gets the
same noise whether it is rendered alone, in a chunk, or in a whole sentence.
"""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SEED_LIMIT = 2**32


def fresh_seed() -> int:
    return secrets.randbelow(SEED_LIMIT)


def nth_seed(seed: int, piece: int) -> int:
    """The seed of one piece of a long request. The first piece is spoken as if it were alone."""
    if piece == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/piece/{piece}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def generator(seed: int, purpose: str) -> torch.Generator:
    """A CPU generator for one purpose of one request."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


Chances = NDArray[np.float64]
"""Uniform between 0 and 1."""


def waits(chances: Chances) -> NDArray[np.float32]:
    """Exponential numbers of those chances: how long each id of a race takes, were all as likely."""
    return (-np.log1p(-chances)).astype(np.float32)


class RaceTape:
    """What each draw of an id is decided by, read by the number of the draw: a chance to each id.

    Ids race: each arrives after its wait over its likelihood, and the first is drawn. Two models that race
    over the same chances draw the same id as often as their likelihoods agree, and a draw can be looked at
    before its turn, by a draft, without changing it. torch.multinomial draws one id by the same race, so read
    in order these are its draws from the same generator: tests/engine/test_randomness.py. Unlike torch we
    take logarithms only for ids that are in the race, which are a hundredth of all.
    """

    def __init__(self, rng: torch.Generator, *, width: int) -> None:
        self._rng, self._width = rng, width
        self._rows: dict[int, Chances] = {}
        self._next = 0

    def read(self, draw: int) -> Chances:
        """(width,) of one draw; those before the one last forgotten are gone."""
        while self._next <= draw:
            row = torch.empty(self._width, dtype=torch.float64).uniform_(generator=self._rng)
            self._rows[self._next] = row.numpy()
            self._next += 1
        return self._rows[draw]

    def forget_before(self, draw: int) -> None:
        for row in [row for row in self._rows if row < draw]:
            del self._rows[row]


class NoiseTape:
    """An endless tape of standard normal rows, `width` values each, read by row number."""

    def __init__(self, seed: int, purpose: str, *, width: int, block_rows: int) -> None:
        self._rng = generator(seed, purpose)
        self._width, self._block_rows = width, block_rows
        self._blocks: dict[int, Tensor] = {}
        self._next_block = 0

    def read(self, start: int, count: int) -> Tensor:
        """Rows start … start + count: (count, width)."""
        if count == 0:
            return torch.empty(0, self._width)
        size = self._block_rows
        last = (start + count - 1) // size
        while self._next_block <= last:
            self._blocks[self._next_block] = torch.randn(size, self._width, generator=self._rng)
            self._next_block += 1
        first = start // size
        rows = torch.cat([self._blocks[block] for block in range(first, last + 1)])
        return rows[start - first * size : start - first * size + count]

    def forget_before(self, row: int) -> None:
        """Rows before this one will not be read again."""
        for block in [b for b in self._blocks if (b + 1) * self._block_rows <= row]:
            del self._blocks[block]
