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


class KVCache(Protocol):
    def positions(self, x: Tensor) -> Tensor:
        """Absolute positions of the tokens x (rows, time, width), however much has been forgotten since.

        (time,), or (rows, time) where the rows have come differently far.
        """

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Remember k and v, then attend causally with q over everything remembered."""

    def rewind(self, position: int) -> None:
        """Forget from `position` on."""


class DenseKVCache:
    """The reference: one buffer, allocated once, written in place."""

    def __init__(
        self, *, rows: int, heads: int, capacity: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (rows, heads, capacity, width)
        self.keys, self.values = lazy_zeros(shape, dtype, device), lazy_zeros(shape, dtype, device)
        self.position = 0

    def of_rows(self, first: int, count: int) -> DenseKVCache:
        """An empty memory of its own over some of the rows: what a pool hands out."""
        part = object.__new__(DenseKVCache)
        part.keys, part.values = self.keys[first : first + count], self.values[first : first + count]
        part.position = 0
        return part

    @property
    def rows(self) -> int:
        return len(self.keys)

    def wipe(self) -> None:
        self.keys.zero_()
        self.values.zero_()

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(self.position, self.position + x.shape[1], device=x.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        start, end = self.position, self.position + k.shape[2]
        if end > self.keys.shape[2]:
            raise memory_full(end, self.keys.shape[2])
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


class BatchedKVCache:
    """Rows that have come differently far, each given a few tokens more: a step of continuous batching."""

    def __init__(
        self, keys: Tensor, values: Tensor, rows: Tensor, lengths: Tensor, counts: Tensor, seen: Tensor
    ) -> None:
        """rows: their numbers, (rows, 1); lengths: how much each remembers; counts: how many tokens it is
        given, the rest of its share being padding; seen: (rows, 1, tokens, time), what each token sees."""
        self.keys, self.values = keys, values
        self._rows, self.lengths, self._counts, self._seen = rows, lengths, counts, seen

    @classmethod
    def of_layers(
        cls,
        whole: Sequence[DenseKVCache],
        lengths: Sequence[int],
        *,
        every: int,
        counts: Sequence[int] | None = None,
    ) -> list[BatchedKVCache]:
        """The memory of each layer over rows 0, `every`, 2·`every`, …, which remember so many positions.

        counts: how many tokens each is given; one, if not told. There must be room for the largest in all.
        """
        each = torch.tensor([1] * len(lengths) if counts is None else counts)
        most = int(each.max())
        part, end = slice(0, every * len(lengths), every), max(lengths) + most
        if end > whole[0].keys.shape[2]:
            raise memory_full(end, whole[0].keys.shape[2])
        device = whole[0].keys.device
        at = torch.tensor(lengths, device=device)
        rows = torch.arange(len(lengths), device=device)[:, None]
        last = at[:, None] + torch.arange(most, device=device)
        seen = (torch.arange(end, device=device) <= last[..., None])[:, None]
        each = each.to(device)
        return [cls(m.keys[part, :, :end], m.values[part, :, :end], rows, at, each, seen) for m in whole]

    def positions(self, x: Tensor) -> Tensor:
        ahead = torch.arange(x.shape[1], device=self.lengths.device)
        # Padding stands where the last token does: beyond it a table of positions may end.
        return self.lengths[:, None] + torch.minimum(ahead, self._counts[:, None] - 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = self.lengths[:, None] + torch.arange(k.shape[2], device=k.device)
        self.keys[self._rows, :, at] = k.transpose(1, 2)
        self.values[self._rows, :, at] = v.transpose(1, 2)
        return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=self._seen)

    def rewind(self, position: int) -> None:
        self.lengths = self.lengths.clamp(max=position)


def memory_full(positions: int, capacity: int) -> MemoryFull:
    return MemoryFull(
        "the utterance outgrew its memory",
        got=f"{positions} positions",
        allowed=f"at most {capacity}",
        fix="Speak a shorter sentence, or open the session with a larger capacity.",
    )


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, not whatever was there: a masked NaN would still make a whole row NaN.

    On a CPU they take no memory until they are written (torch.zeros writes them at once), so a pool for many
    costs what few have used of it.
    """
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    lazy = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(lazy).view(dtype).view(shape)
