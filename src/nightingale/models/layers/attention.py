"""Scaled dot-product attention of all networks."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, is_causal: bool = False
) -> Tensor:
    """Return the attention of queries, keys and values (batch, heads, time, width)."""
    if q.device.type == "mps":  # it computes permuted heads of 64 channels or more wrongly
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    if mask is not None and mask.is_cuda and mask.is_floating_point():
        # Its kernels read a mask in vectors of 16 bytes, wherever a view of it begins: "misaligned address".
        mask = mask.contiguous()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
