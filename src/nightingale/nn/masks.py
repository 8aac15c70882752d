"""Who may look at whom.

A mask is boolean, true where a query may look: (batch or 1, 1, queries, keys). `None` means everybody may,
which is what a single utterance rendered whole needs, and what the fast attention kernels like best.
"""

from __future__ import annotations

from torch import Tensor


def attention_mask(valid: Tensor | None, blocks: Tensor | None) -> Tensor | None:
    """Combine padding and streaming blocks into one mask.

    valid: (batch, time) boolean, false on padding. blocks: (batch or 1, time) integers; a position sees every
    position whose block is not later than its own, so what was rendered never depends on what comes next.
    """
    mask = None
    if blocks is not None:
        mask = blocks[:, None, None, :] <= blocks[:, None, :, None]
    if valid is not None:
        keys = valid[:, None, None, :]
        mask = keys if mask is None else mask & keys
    return mask
