"""Llama's decode step for a few rows in five kernels a layer, written in Triton.

Why it helps here. One token reads every weight once; with two rows the arithmetic is nothing. A layer by
library calls is a dozen kernels, most of which only carry a few kilobytes from one to the next. Here every
norm, rotation, append, activation and sum is part of the kernel that reads the weights beside it:

    norm · qkv  |  rotate · append · attend  |  out + x  |  norm · gate, up · SwiGLU  |  down + x

Each program multiplies a few output columns with all rows, so rows must be few: above MOST_ROWS the library
is as good. Sums have one order, so a seed gives the same tokens each time.

The twin is `layers.layer`; on a machine without a GPU the kernels run in Triton's interpreter
(TRITON_INTERPRET=1), which is how tests/accel/test_kernels.py checks them there.
"""

# What Triton compiles may not be annotated with what it does not know.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from nightingale.accel.layers import LlamaWeights

MOST_ROWS = 4


@triton.jit
def _norm_scale(x_ptr, row: tl.constexpr, INPUTS: tl.constexpr, BLOCK_IN: tl.constexpr):
    """One over the root mean square of a row."""
    square = 0.0
    for start in range(0, INPUTS, BLOCK_IN):
        x = tl.load(x_ptr + row * INPUTS + start + tl.arange(0, BLOCK_IN)).to(tl.float32)
        square += tl.sum(x * x, axis=0)
    return 1.0 / tl.sqrt(square / INPUTS + 1e-5)


@triton.jit
def _input(
    x_ptr,
    norm_ptr,
    row: tl.constexpr,
    at,
    scale,
    INPUTS: tl.constexpr,
    NORM: tl.constexpr,
):
    """Some of a row, normed; rounded where the plain twin rounds."""
    kind = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * INPUTS + at).to(tl.float32)
    if NORM:
        x = (x * scale).to(kind).to(tl.float32)
        x = (x * tl.load(norm_ptr + at).to(tl.float32)).to(kind).to(tl.float32)
    return x[None, :]


@triton.jit
def _finish(
    total,
    gated,
    residual_ptr,
    out_ptr,
    place,
    GATED: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    if GATED:
        total = total * tl.sigmoid(total) * gated
    if RESIDUAL:
        total += tl.load(residual_ptr + place).to(tl.float32)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty))


@triton.jit
def _linear_kernel(
    x_ptr,
    norm_ptr,
    weight_ptr,
    residual_ptr,
    out_ptr,
    outputs,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    """out[r, n] = norm(x)[r] · weight[n]; gated: silu of that, times the same with weight[outputs + n].

    Rows are written out, and not an axis: a block of weights is then multiplied where it was loaded.
    """
    out = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    scale_0, scale_1, scale_2, scale_3 = 1.0, 1.0, 1.0, 1.0
    if NORM:
        scale_0 = _norm_scale(x_ptr, 0, INPUTS, BLOCK_IN)
        if ROWS > 1:
            scale_1 = _norm_scale(x_ptr, 1, INPUTS, BLOCK_IN)
        if ROWS > 2:
            scale_2 = _norm_scale(x_ptr, 2, INPUTS, BLOCK_IN)
        if ROWS > 3:
            scale_3 = _norm_scale(x_ptr, 3, INPUTS, BLOCK_IN)
    total_0 = tl.zeros([BLOCK_OUT], tl.float32)
    total_1, total_2, total_3 = total_0, total_0, total_0
    gated_0, gated_1, gated_2, gated_3 = total_0, total_0, total_0, total_0
    for start in range(0, INPUTS, BLOCK_IN):
        at = start + tl.arange(0, BLOCK_IN)
        w = tl.load(weight_ptr + out[:, None] * INPUTS + at[None, :]).to(tl.float32)
        u = w
        if GATED:
            u = tl.load(weight_ptr + (out + outputs)[:, None] * INPUTS + at[None, :]).to(tl.float32)
        x = _input(x_ptr, norm_ptr, 0, at, scale_0, INPUTS, NORM)
        total_0 += tl.sum(w * x, axis=1)
        if GATED:
            gated_0 += tl.sum(u * x, axis=1)
        if ROWS > 1:
            x = _input(x_ptr, norm_ptr, 1, at, scale_1, INPUTS, NORM)
            total_1 += tl.sum(w * x, axis=1)
            if GATED:
                gated_1 += tl.sum(u * x, axis=1)
        if ROWS > 2:
            x = _input(x_ptr, norm_ptr, 2, at, scale_2, INPUTS, NORM)
            total_2 += tl.sum(w * x, axis=1)
            if GATED:
                gated_2 += tl.sum(u * x, axis=1)
        if ROWS > 3:
            x = _input(x_ptr, norm_ptr, 3, at, scale_3, INPUTS, NORM)
            total_3 += tl.sum(w * x, axis=1)
            if GATED:
                gated_3 += tl.sum(u * x, axis=1)
    _finish(total_0, gated_0, residual_ptr, out_ptr, out, GATED, RESIDUAL)
    if ROWS > 1:
        _finish(total_1, gated_1, residual_ptr, out_ptr, outputs + out, GATED, RESIDUAL)
    if ROWS > 2:
        _finish(total_2, gated_2, residual_ptr, out_ptr, 2 * outputs + out, GATED, RESIDUAL)
    if ROWS > 3:
        _finish(total_3, gated_3, residual_ptr, out_ptr, 3 * outputs + out, GATED, RESIDUAL)


@triton.jit
def _attend_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    keys_ptr,
    values_ptr,
    lengths_ptr,
    out_ptr,
    row_stride,
    head_stride,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One head of one row: its query and key turned, the key and value appended, the past attended to."""
    row, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, WIDTH)
    other = (at + WIDTH // 2) % WIDTH
    sign = tl.where(at < WIDTH // 2, -1.0, 1.0)
    kind = qkv_ptr.dtype.element_ty
    cos = tl.load(cos_ptr + row * WIDTH + at).to(tl.float32)
    sin = tl.load(sin_ptr + row * WIDTH + at).to(tl.float32) * sign
    q_ptr = qkv_ptr + row * 3 * HEADS * WIDTH + head * WIDTH
    k_ptr = q_ptr + HEADS * WIDTH
    v_ptr = k_ptr + HEADS * WIDTH
    q = tl.load(q_ptr + at).to(tl.float32) * cos + tl.load(q_ptr + other).to(tl.float32) * sin
    k = tl.load(k_ptr + at).to(tl.float32) * cos + tl.load(k_ptr + other).to(tl.float32) * sin
    q = q.to(kind).to(tl.float32) * scale
    k = k.to(kind)
    v = tl.load(v_ptr + at)
    length = tl.load(lengths_ptr + row)
    base = row * row_stride + head * head_stride
    tl.store(keys_ptr + base + length * WIDTH + at, k)
    tl.store(values_ptr + base + length * WIDTH + at, v)
    # The new position first: it needs nothing from memory, and gives the running maximum a start.
    most = tl.sum(q * k.to(tl.float32), axis=0)
    weight = most * 0.0 + 1.0
    total = v.to(tl.float32)
    for start in range(0, length, BLOCK):
        time = start + tl.arange(0, BLOCK)
        past = time[:, None] < length
        place = base + time[:, None] * WIDTH + at[None, :]
        known = tl.load(keys_ptr + place, mask=past, other=0.0).to(tl.float32)
        score = tl.where(time < length, tl.sum(known * q[None, :], axis=1), float("-inf"))
        higher = tl.maximum(most, tl.max(score, axis=0))
        share = tl.exp(score - higher)
        shrink = tl.exp(most - higher)
        known = tl.load(values_ptr + place, mask=past, other=0.0).to(tl.float32)
        weight = weight * shrink + tl.sum(share, axis=0)
        total = total * shrink + tl.sum(known * share[:, None], axis=0)
        most = higher
    tl.store(out_ptr + row * HEADS * WIDTH + head * WIDTH + at, (total / weight).to(kind))


class Tuning(NamedTuple):
    """How a product is cut up. What is best is for the machine to say: benchmarks/gpu.py tries several."""

    block_out: int = 8
    block_in: int = 512
    warps: int = 4


def _linear(
    x: Tensor,
    weight: Tensor,
    tuning: Tuning,
    *,
    norm: Tensor | None = None,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    rows, inputs = x.shape
    outputs = weight.shape[0] // 2 if gated else weight.shape[0]
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    block_out = min(tuning.block_out, outputs & -outputs)  # a power of two that divides them
    _linear_kernel[(outputs // block_out,)](
        x,
        x if norm is None else norm,
        weight,
        x if residual is None else residual,
        out,
        outputs,
        INPUTS=inputs,
        ROWS=rows,
        BLOCK_OUT=block_out,
        BLOCK_IN=min(tuning.block_in, inputs & -inputs),
        NORM=norm is not None,
        GATED=gated,
        RESIDUAL=residual is not None,
        num_warps=tuning.warps,
    )
    return out


def llama_layer(
    x: Tensor,
    w: LlamaWeights,
    turn: tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    tuning: Tuning,
) -> Tensor:
    """x: (rows, width); turn: cosines and sines, (rows, head width) each; keys, values: (rows, heads, span,
    head width), of any row stride, written at `lengths`."""
    rows, heads, _, width = keys.shape
    assert x.is_contiguous(), "the kernels count on it"
    assert lengths.is_contiguous(), "the kernels count on it"
    qkv = _linear(x, w.qkv, tuning, norm=w.norm_1)
    heard = torch.empty_like(x)
    _attend_kernel[(rows, heads)](
        qkv,
        turn[0],
        turn[1],
        keys,
        values,
        lengths,
        heard,
        keys.stride(0),
        keys.stride(1),
        width**-0.5,
        HEADS=heads,
        WIDTH=width,
        BLOCK=64,
        num_warps=4,
    )
    x = _linear(heard, w.out, tuning, residual=x)
    inner = _linear(x, w.gate_up, tuning, norm=w.norm_2, gated=True)
    return _linear(inner, w.down, tuning, residual=x)
