"""What an attention layer remembers.

The layer does not know how it is remembered: dense, quantised, windowed and paged memories are classes with
this one protocol, and the attention itself happens inside the memory, so nothing ever asks which one it is.
All tensors are (rows, heads, time, head width).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.errors import MemoryFull


class LayerMemory(Protocol):
    def positions(self, x: Tensor) -> Tensor:
        """Absolute positions of the tokens x (rows, time, width), however much has been forgotten since.

        (time,), or (rows, time) where the rows have come differently far.
        """

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Remember k and v, then attend causally with q over everything remembered."""

    def rewind(self, position: int) -> None:
        """Forget from `position` on."""


class DenseMemory:
    """The reference: one buffer, allocated once, written in place."""

    def __init__(
        self, *, rows: int, heads: int, capacity: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (rows, heads, capacity, width)
        self.keys, self.values = _zeros(shape, dtype, device), _zeros(shape, dtype, device)
        self.position = 0

    def of_rows(self, first: int, count: int) -> DenseMemory:
        """An empty memory of its own over some of the rows: what a pool hands out."""
        part = object.__new__(DenseMemory)
        part.keys, part.values = self.keys[first : first + count], self.values[first : first + count]
        part.position = 0
        return part

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(self.position, self.position + x.shape[1], device=x.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        start, end = self.position, self.position + k.shape[2]
        if end > self.keys.shape[2]:
            raise _full(end, self.keys.shape[2])
        self.keys[:, :, start:end] = k
        self.values[:, :, start:end] = v
        self.position = end
        mask = None
        if k.shape[2] > 1:
            at = torch.arange(end, device=q.device)
            mask = at[None, :] <= at[start:, None]
        return F.scaled_dot_product_attention(
            q, self.keys[:, :, :end], self.values[:, :, :end], attn_mask=mask
        )

    def rewind(self, position: int) -> None:
        self.position = position


class NoMemory:
    """A whole sequence at once, remembered by nobody: training, and scoring a finished utterance."""

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1], device=x.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def rewind(self, position: int) -> None:
        """There is nothing to forget."""


class RowsMemory:
    """Rows that have come differently far, one more token each: a step of continuous batching."""

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, lengths: Tensor, seen: Tensor) -> None:
        """rows: their numbers; lengths: how much each remembers; seen: (rows, 1, 1, time), which of it."""
        self.keys, self.values = keys, values
        self._rows, self.lengths, self._seen = rows, lengths, seen

    @classmethod
    def of_layers(
        cls, whole: Sequence[DenseMemory], lengths: Sequence[int], *, every: int
    ) -> list[RowsMemory]:
        """The memory of each layer over rows 0, `every`, 2·`every`, …, which remember so many positions."""
        part, end = slice(0, every * len(lengths), every), max(lengths) + 1
        if end > whole[0].keys.shape[2]:
            raise _full(end, whole[0].keys.shape[2])
        at = torch.tensor(lengths, device=whole[0].keys.device)
        rows = torch.arange(len(lengths), device=at.device)
        seen = (torch.arange(end, device=at.device)[None] <= at[:, None])[:, None, None]
        return [cls(m.keys[part, :, :end], m.values[part, :, :end], rows, at, seen) for m in whole]

    def positions(self, x: Tensor) -> Tensor:
        return self.lengths[:, None].expand(-1, x.shape[1])

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.keys[self._rows, :, self.lengths] = k[:, :, 0]
        self.values[self._rows, :, self.lengths] = v[:, :, 0]
        return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=self._seen)

    def rewind(self, position: int) -> None:
        self.lengths = self.lengths.clamp(max=position)


def _full(positions: int, capacity: int) -> MemoryFull:
    return MemoryFull(
        "the utterance outgrew its memory",
        got=f"{positions} positions",
        allowed=f"at most {capacity}",
        fix="Speak a shorter sentence, or open the session with a larger capacity.",
    )


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, not whatever was there: a masked NaN would still make a whole row NaN.

    On a CPU they take no memory until they are written (torch.zeros writes them at once), so a pool for many
    costs what few have used of it.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    lazy = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(lazy).view(dtype).view(shape)
