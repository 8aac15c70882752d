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
    @property
    def position(self) -> int:
        """Absolute position of the next token, however much has been forgotten since."""

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
        self._position = 0

    @property
    def position(self) -> int:
        return self._position

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        start, end = self._position, self._position + k.shape[2]
        if end > self.keys.shape[2]:
            raise MemoryFull(
                "the utterance outgrew its memory",
                got=f"{end} positions",
                allowed=f"at most {self.keys.shape[2]}",
                fix="Speak a shorter sentence, or open the session with a larger capacity.",
            )
        self.keys[:, :, start:end] = k
        self.values[:, :, start:end] = v
        self._position = end
        mask = None
        if k.shape[2] > 1:
            at = torch.arange(end, device=q.device)
            mask = at[None, :] <= at[start:, None]
        return F.scaled_dot_product_attention(
            q, self.keys[:, :, :end], self.values[:, :, :end], attn_mask=mask
        )

    def rewind(self, position: int) -> None:
        self._position = position


class NoMemory:
    """A whole sequence at once, remembered by nobody: training, and scoring a finished utterance."""

    position = 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def rewind(self, position: int) -> None:
        """There is nothing to forget."""
