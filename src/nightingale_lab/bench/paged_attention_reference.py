"""Attention over the blocks of a KV pool in plain PyTorch, one head of a row at a time.

It takes the arguments of the Triton kernel (backends/shared/paged_attention.py), for its tests and benchmark.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nightingale.models.layers.kv_blocks import MAX_QUANTIZED, KVBlockPool, dequantize, quantize


def attend_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_pool: KVBlockPool,
    *,
    starts: Tensor,
    rings: Tensor,
    prompts: Tensor,
    lengths: Tensor,
    slack: int,
) -> Tensor:
    """Store k and v of one token of each row, then attend with q: (rows, heads, 1, width)."""
    out = torch.zeros_like(q)
    dtype = block_pool.layout.dtype
    buffers = (
        (k, block_pool.keys, block_pool.key_scales),
        (v, block_pool.values, block_pool.value_scales),
    )
    for row, head in torch.nonzero(starts >= 0).tolist():
        start, ring = int(starts[row, head]), int(rings[row, head])
        prompt, length = int(prompts[row]), int(lengths[row])
        own = start + prompt + (length - prompt) % ring
        at = torch.arange(min(length + 1, prompt + ring), device=q.device)
        age = (length - at) % ring
        place = start + at[(at < prompt) | (age < ring - slack)]
        stored = []
        for x, buffer, scales in buffers:
            if dtype in MAX_QUANTIZED:
                buffer[own], scales[own] = quantize(x[row, head, 0], dtype, scales.shape[1])
                # As int8: not every device indexes float8.
                stored.append(dequantize(buffer.view(torch.int8)[place].view(dtype), scales[place]))
            else:
                buffer[own] = x[row, head, 0]
                stored.append(buffer[place].float())
        keys, values = stored
        scores = keys @ (q[row, head, 0].float() * q.shape[-1] ** -0.5)
        out[row, head, 0] = (scores.softmax(0) @ values).to(q.dtype)
    return out
