"""The Triton kernel that makes the renderer's noise. See decoding/philox.py.

`tl.philox` is Philox4x32-10, with the counter and the key that decoding/philox.py uses. Each value computes
the four words of its own counter and uses one or two of them: four times the arithmetic that is needed, but
no value has to be exchanged between threads, and the kernel takes microseconds.

Not imported where Triton is missing: cuda/random.py then uses library calls.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nightingale.backends.cuda.triton_support import launch

BLOCK = 1024


@triton.jit(do_not_specialize=["rows", "width"])  # one compilation for all sizes
def _normal_kernel(key_ptr, first_row_ptr, out_ptr, rows, width, BLOCK: tl.constexpr):
    """out[b, column, row] = value (first_row[b] + row) * width + column of the stream with key[b]."""
    batch = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column, row = at // rows, at % rows
    value = (tl.load(first_row_ptr + batch) + row) * width + column
    block, lane = value >> 2, value & 3
    zero = tl.zeros([BLOCK], tl.uint32)
    c0, c1, c2, c3 = tl.philox(
        tl.load(key_ptr + batch), block.to(tl.uint32), (block >> 32).to(tl.uint32), zero, zero
    )
    radius = tl.where(lane < 2, c0, c2).to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    angle = tl.where(lane < 2, c1, c3).to(tl.float32) * 1.4629180792671596e-09
    wave = tl.where(lane % 2 == 0, tl.cos(angle), tl.sin(angle))
    places = out_ptr + batch.to(tl.int64) * rows * width + at
    tl.store(places, tl.sqrt(-2.0 * tl.log(radius)) * wave, mask=at < rows * width)


def normal(key: Tensor, first_row: Tensor, rows: int, width: int) -> Tensor:
    """Return noise as `cuda.random.normal` does: key, first_row (batch,) -> (batch, width, rows)."""
    out = torch.empty(len(key), width, rows, dtype=torch.float32, device=key.device)
    grid = (len(key), triton.cdiv(rows * width, BLOCK))
    launch(_normal_kernel, grid, key.contiguous(), first_row.contiguous(), out, rows, width, BLOCK=BLOCK)
    return out
