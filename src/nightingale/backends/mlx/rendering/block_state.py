"""The state that layers pass from one block to the next: models/layers/streaming_state.py on MLX.

Sequences are (batch, time, channels), keys and values (batch, heads, time, width).
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import mlx.core as mx

SavedArrays = tuple[mx.array, ...]
"""The arrays that layers saved, in the order of the forward pass."""


class BlockState:
    """The state of one pass over one block: it reads `past` and collects what is saved for the next block.

    The next block starts at the fraction `advance` of this one. `store` saves the keys and values of this block
    too, and not only those of `past`, of at most `max_positions`. `padded`: how many tokens the block has with
    its padding, and how many without.
    """

    def __init__(
        self,
        past: SavedArrays | None,
        *,
        advance: Fraction = Fraction(1),
        store: bool = True,
        max_positions: int | None = None,
        padded: tuple[int, mx.array] | None = None,
    ) -> None:
        self._past = None if past is None else list(reversed(past))
        self._advance, self._store, self._max_positions = advance, store, max_positions
        self._padded = padded
        self._saved: list[mx.array] = []

    def saved(self) -> SavedArrays:
        """Return the past of the next block."""
        assert not self._past, "the past belongs to another network"
        return tuple(self._saved)

    @property
    def cached_positions(self) -> int:
        """The positions whose keys and values the next attention layer has."""
        return 0 if self._past is None else int(self._past[-1].shape[2])

    def take(self) -> mx.array | None:
        """Return the next array of the past, None at the start."""
        return None if self._past is None else self._past.pop()

    def save(self, x: mx.array) -> None:
        """Save a copy for the next block: a view would keep the memory of the whole block."""
        self._saved.append(mx.contiguous(x))

    def mask(self, positions: int, keys: int) -> mx.array | None:
        """Return which of the keys are no padding, None for all; the last `positions` are this block's."""
        if self._padded is None:
            return None
        tokens, real = self._padded
        return mx.arange(keys) < keys - positions + real * (positions // tokens)

    def prepend_inputs(self, x: mx.array, width: int, *, start: float = 0.0) -> mx.array:
        """Return x after the `width` inputs before it, which are `start` before the first block."""
        past = (
            mx.full((len(x), width, *x.shape[2:]), start, x.dtype) if self._past is None else self._past.pop()
        )
        joined = mx.concatenate([past, x], axis=1)
        first = int(self._advance * x.shape[1])
        self.save(joined[:, first : first + width])
        return joined

    def prepend_kv(self, x: mx.array) -> mx.array:
        """Return keys or values after the cached ones."""
        past = x[:, :, :0] if self._past is None else self._past.pop()
        joined = mx.concatenate([past, x], axis=2)
        saved = joined if self._store else past
        if self._max_positions is not None and saved.shape[2] > self._max_positions:
            saved = mx.contiguous(saved[:, :, -self._max_positions :])
        self._saved.append(saved)
        return joined


class FlowPast(NamedTuple):
    """The arrays that a flow saved: once in the encoder, and once for each solver step. It is never written to."""

    encoder: SavedArrays
    steps: tuple[SavedArrays, ...]

    @property
    def arrays(self) -> list[mx.array]:
        return [array for saved in (self.encoder, *self.steps) for array in saved]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)
