"""KV caches of attention layers: the protocol, the dense reference, and a batch of dense rows.

A layer does not know how its keys and values are stored: attention is computed inside the cache. All tensors
are (rows, heads, time, head width).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nightingale.models.layers.aligned_arrays import page_aligned_zeros
from nightingale.models.layers.attention import attention
from nightingale.models.layers.capacity import check_capacity


class KVCache(Protocol):
    """The keys and values of one attention layer."""

    def positions(self, x: Tensor) -> Tensor:
        """Return the absolute positions of the tokens x (rows, time, width).

        (time,), or (rows, time) where the rows have different lengths.
        """

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v, then attend causally with q over everything stored."""


class DenseKVCache:
    """The reference: two buffers (rows, heads, capacity, width), allocated once and written in place."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values, self.position = keys, values, 0

    def slice_rows(self, first: int, count: int) -> DenseKVCache:
        """Return an empty cache that uses some of the rows of this one's buffers."""
        return DenseKVCache(self.keys[first : first + count], self.values[first : first + count])

    @property
    def rows(self) -> int:
        return len(self.keys)

    def wipe(self) -> None:
        """Fill the buffer with zeros."""
        self.keys.zero_()
        self.values.zero_()

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(self.position, self.position + x.shape[1], device=x.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        start, end = self.position, self.position + k.shape[2]
        check_capacity(end, self.keys.shape[2])
        self.keys[:, :, start:end] = k
        self.values[:, :, start:end] = v
        self.position = end
        mask = None
        if k.shape[2] > 1:
            at = torch.arange(end, device=q.device)
            mask = at[None, :] <= at[start:, None]
        return attention(q, self.keys[:, :, :end], self.values[:, :, :end], mask)


class BatchedKVCache:
    """One layer of rows of different lengths that each take one more token: a step of continuous batching.

    rows and lengths are (rows,), mask is (rows, 1, 1, time).
    """

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, lengths: Tensor, mask: Tensor) -> None:
        self.keys, self.values = keys, values
        self._rows, self.lengths, self._mask = rows, lengths, mask

    @classmethod
    def for_layers(
        cls, layers: Sequence[DenseKVCache], lengths: Sequence[int], *, every: int
    ) -> list[BatchedKVCache]:
        """Return the batched cache of each layer over its rows 0, `every`, 2·`every`, ….

        Each row has `lengths` stored positions.
        """
        part, end = slice(0, every * len(lengths), every), max(lengths) + 1
        check_capacity(end, layers[0].keys.shape[2])
        device = layers[0].keys.device
        at = torch.tensor(lengths, device=device)
        rows = torch.arange(len(lengths), device=device)
        mask = (torch.arange(end, device=device) <= at[:, None])[:, None, None]
        return [cls(m.keys[part, :, :end], m.values[part, :, :end], rows, at, mask) for m in layers]

    def positions(self, x: Tensor) -> Tensor:  # noqa: ARG002, one token of each row
        return self.lengths[:, None]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.keys[self._rows, :, self.lengths] = k[:, :, 0]
        self.values[self._rows, :, self.lengths] = v[:, :, 0]
        return attention(q, self.keys, self.values, self._mask)


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros that, on a CPU, take no memory before they are written, unlike those of torch.zeros.

    Uninitialized memory would not do: a masked NaN would still make a whole row NaN.
    """
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    # Memory that malloc has kept would be overwritten with zeros, so it comes from the operating system.
    lazy = page_aligned_zeros((math.prod(shape) * dtype.itemsize,), np.uint8)
    return torch.from_numpy(lazy).view(dtype).view(shape)
