"""A KV cache that stores nothing, for passes over whole sequences: training and scoring."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class NoKVCache:
    """Causal attention over the tokens of one pass."""

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[1], device=x.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
