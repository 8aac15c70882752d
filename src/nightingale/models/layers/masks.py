"""Attention masks of padded batches and streaming blocks.

A mask is boolean, true where a query attends to a key: (batch or 1, 1, queries, keys). None attends to
everything: what one utterance rendered whole needs, and what the attention kernels run fastest.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attention_mask(
    valid: Tensor | None, blocks: Tensor | None, left_context: int | None = None
) -> Tensor | None:
    """Combine padding and streaming blocks into one mask.

    Args:
        valid: (batch, time), false on padding.
        blocks: The block number of each position, (batch or 1, time). A position attends to no later block,
            so that rendered audio never depends on what follows.
        left_context: The number of positions before its own block that a position attends to; None is all.
    """
    mask = None
    if blocks is not None:
        mask = blocks[:, None, None, :] <= blocks[:, None, :, None]
        if left_context is not None:
            # (batch, time): the position where each one's block begins
            begins = (blocks[:, None, :] < blocks[:, :, None]).sum(-1)
            at = torch.arange(blocks.shape[1], device=blocks.device)
            mask &= at >= begins[:, None, :, None] - left_context
    if valid is not None:
        keys = valid[:, None, None, :]
        mask = keys if mask is None else mask & keys
    return mask
