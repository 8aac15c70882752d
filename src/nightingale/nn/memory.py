"""What an attention layer remembers.

The layer does not know how it is remembered: dense, quantised, windowed and paged memories are classes with
this one protocol, and the attention itself happens inside the memory, so nothing ever asks which one it is.
All tensors are (rows, heads, time, head width).
"""

from __future__ import annotations

from typing import Protocol

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
        self.keys = torch.empty(rows, heads, capacity, width, dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)
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
            raise MemoryFull(
                "the utterance outgrew its memory",
                got=f"{end} positions",
                allowed=f"at most {self.keys.shape[2]}",
                fix="Speak a shorter sentence, or open the session with a larger capacity.",
            )
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

    def __init__(self, whole: DenseMemory, lengths: Tensor, longest: int) -> None:
        """lengths: (rows,), how much each row remembers; longest: the largest of them, known to the host."""
        self.whole, self.lengths, self.longest = whole, lengths, longest

    def positions(self, x: Tensor) -> Tensor:
        return self.lengths[:, None].expand(-1, x.shape[1])

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, end = torch.arange(len(q), device=q.device), self.longest + 1
        self.whole.keys[rows, :, self.lengths] = k[:, :, 0]
        self.whole.values[rows, :, self.lengths] = v[:, :, 0]
        mask = torch.arange(end, device=q.device)[None] <= self.lengths[:, None]
        return F.scaled_dot_product_attention(
            q,
            self.whole.keys[: len(q), :, :end],
            self.whole.values[: len(q), :, :end],
            attn_mask=mask[:, None, None],
        )

    def rewind(self, position: int) -> None:
        self.lengths = self.lengths.clamp(max=position)
