"""Triton kernels that draw: noise for the renderer, and the next tokens. See decoding/philox.py.

`tl.philox` is Philox4x32-10, with the counter and the key that decoding/philox.py uses. Each value computes
the four words of its own counter and uses one or two of them: four times the arithmetic that is needed, but
no value has to be exchanged between threads, and the kernels take microseconds.

Not imported where Triton is missing: cuda/random.py and cuda/batched_sampling.py then use library calls.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _normal_kernel(key_ptr, first_row_ptr, out_ptr, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out[b, column, row] = value (first_row[b] + row) * WIDTH + column of the stream with key[b]."""
    batch = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column, row = at // rows, at % rows
    value = (tl.load(first_row_ptr + batch) + row) * WIDTH + column
    block, lane = value >> 2, value & 3
    zero = tl.zeros([BLOCK], tl.uint32)
    c0, c1, c2, c3 = tl.philox(
        tl.load(key_ptr + batch), block.to(tl.uint32), (block >> 32).to(tl.uint32), zero, zero
    )
    radius = tl.where(lane < 2, c0, c2).to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    angle = tl.where(lane < 2, c1, c3).to(tl.float32) * 1.4629180792671596e-09
    wave = tl.where(lane % 2 == 0, tl.cos(angle), tl.sin(angle))
    places = out_ptr + batch.to(tl.int64) * rows * WIDTH + at
    tl.store(places, tl.sqrt(-2.0 * tl.log(radius)) * wave, mask=at < rows * WIDTH)


@triton.jit
def _sample_kernel(
    logits_ptr, row_stride, key_ptr, draw_ptr, greedy_ptr, token_ptr, vocab, BLOCK: tl.constexpr
):
    """token[slot] = argmax over ids of logit - log(-log(uniform(key, draw, id))), or of logit if greedy."""
    slot = tl.program_id(0)
    key, greedy = tl.load(key_ptr + slot), tl.load(greedy_ptr + slot).to(tl.int1)
    draw = tl.zeros([BLOCK], tl.int64) + tl.load(draw_ptr + slot)
    zero = tl.zeros([BLOCK], tl.uint32)
    best_value = tl.full([], float("-inf"), tl.float64)
    best_id = tl.full([], 0, tl.int32)
    for start in range(0, vocab, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        logits = tl.load(logits_ptr + slot * row_stride + ids, mask=ids < vocab, other=float("-inf"))
        logits = tl.where(logits == logits, logits, float("-inf"))  # no NaN: the id must be a valid one
        c0, c1, c2, c3 = tl.philox(key, (ids >> 2).to(tl.uint32), draw.to(tl.uint32), zero, zero)
        lane = ids & 3
        bits = tl.where(lane < 2, tl.where(lane == 0, c0, c1), tl.where(lane == 2, c2, c3))
        uniform = (bits.to(tl.float64) + 0.5) * 2.3283064365386963e-10
        value = logits.to(tl.float64) - tl.where(greedy, 0.0, tl.log(-tl.log(uniform)))
        highest = tl.max(value, axis=0)
        first = start + tl.argmax(value, axis=0)
        best_id = tl.where(highest > best_value, first, best_id)
        best_value = tl.where(highest > best_value, highest, best_value)
    tl.store(token_ptr + slot, best_id.to(tl.int64))


def normal(key: Tensor, first_row: Tensor, rows: int, width: int) -> Tensor:
    """Return noise as `cuda.random.normal` does: key, first_row (batch,) -> (batch, width, rows)."""
    out = torch.empty(len(key), width, rows, dtype=torch.float32, device=key.device)
    grid = (len(key), triton.cdiv(rows * width, BLOCK))
    _normal_kernel[grid](key.contiguous(), first_row.contiguous(), out, rows, WIDTH=width, BLOCK=BLOCK)
    return out


def sample(logits: Tensor, key: Tensor, draw: Tensor, greedy: Tensor) -> Tensor:
    """Return the token of each slot: logits (slots, vocab), the others (slots,) -> (slots,) int64."""
    logits = logits.float().contiguous()
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    _sample_kernel[(len(logits),)](
        logits, logits.stride(0), key, draw, greedy, tokens, logits.shape[1], BLOCK=BLOCK, num_warps=8
    )
    return tokens
