"""The state that layers pass from one block of a sequence to the next.

A causal convolution needs the few inputs before its block; attention needs the earlier keys and values. In
the order of the forward pass, each such layer takes what it saved for this block and saves something for the
next one. Layers hold no state. Saved tensors are never written to, so many streams may start from one.
"""

from __future__ import annotations

from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor

SavedState = tuple[Tensor, ...]
"""The tensors that layers saved, in the order of the forward pass."""


class StreamingState:
    """The state of one pass over one block: it reads `past` and collects what is saved for the next block.

    `past` is None at the start of a stream. The next block starts at the fraction `advance` of this one, less
    than 1 if they overlap. `store` saves the keys and values of this block too, and not only those of `past`, of
    at most `max_positions`.
    """

    def __init__(
        self,
        past: SavedState | None = None,
        *,
        advance: Fraction = Fraction(1),
        store: bool = True,
        max_positions: int | None = None,
    ) -> None:
        self._past = None if past is None else list(reversed(past))
        self._advance, self._store, self._max_positions = advance, store, max_positions
        self._saved: list[Tensor] = []

    def saved(self) -> SavedState:
        """Return the past of the next block."""
        assert not self._past, "the past belongs to another network"
        return tuple(self._saved)

    @property
    def cached_positions(self) -> int:
        """The positions whose keys and values the next attention layer has."""
        return 0 if self._past is None else self._past[-1].shape[-2]

    def take(self) -> Tensor:
        """Return the next tensor of the past, of a stream that begins with a state of its own."""
        assert self._past is not None, "this network has no state to start from"
        return self._past.pop()

    def save(self, x: Tensor) -> None:
        """Save a tensor for the next block."""
        self._saved.append(x)

    def prepend_inputs(self, x: Tensor, width: int, *, dim: int = -1) -> Tensor:
        """Return x after the `width` inputs before it along a dimension, which are zeros at the start."""
        if self._past is None:
            assert dim == -1, "a stream without a state has its time last"
            joined = F.pad(x, (width, 0))
        else:
            joined = torch.cat([self._past.pop(), x], dim=dim)
        start = x.shape[dim] if self._advance == 1 else int(self._advance * x.shape[dim])
        self._saved.append(joined.narrow(dim, start, width).clone())  # a view would keep the whole block
        return joined

    def prepend_kv(self, x: Tensor) -> Tensor:
        """Return keys or values x (…, time, width) after the cached ones."""
        past = x.new_empty(*x.shape[:-2], 0, x.shape[-1]) if self._past is None else self._past.pop()
        joined = torch.cat([past, x], dim=-2)
        saved = joined if self._store else past
        if self._max_positions is not None and saved.shape[-2] > self._max_positions:
            saved = saved[..., -self._max_positions :, :].clone()
        self._saved.append(saved)
        return joined
