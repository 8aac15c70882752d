"""Who may look at whom.

A mask is boolean, true where a query may look: (batch or 1, 1, queries, keys). `None` means everybody may,
which is what a single utterance rendered whole needs, and what the fast attention kernels like best.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attention_mask(
    valid: Tensor | None, blocks: Tensor | None, remembered: int | None = None
) -> Tensor | None:
    """Combine padding and streaming blocks into one mask.

    valid: (batch, time) boolean, false on padding. blocks: (batch or 1, time) integers; a position sees every
    position whose block is not later than its own, so what was rendered never depends on what comes next.
    remembered: how far it sees back from where its block begins.
    """
    mask = None
    if blocks is not None:
        mask = blocks[:, None, None, :] <= blocks[:, None, :, None]
        if remembered is not None:
            begins = (blocks[:, None, :] < blocks[:, :, None]).sum(
                -1
            )  # (batch, time), where each one's block does
            place = torch.arange(blocks.shape[1], device=blocks.device)
            mask &= place >= begins[:, None, :, None] - remembered
    if valid is not None:
        keys = valid[:, None, None, :]
        mask = keys if mask is None else mask & keys
    return mask
