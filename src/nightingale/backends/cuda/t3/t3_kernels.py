"""Triton kernels of T3's decode step.

One token reads every weight once; with two rows the arithmetic is negligible. By library calls a layer is two
to four dozen kernels, most of which carry a few kilobytes from one to the next. Here every norm, rotation,
cache write, activation and sum is part of the kernel that reads the weights beside it, five in all:

    norm · qkv  |  rotate · append · attend  |  out + x  |  norm · up · activation  |  down + x

`linear`: x (rows, inputs), weight (outputs, inputs), at most MAX_ROWS rows; out (rows, outputs).

    for each block of BLOCK_OUT outputs, in parallel:
        for each block of BLOCK_IN inputs:
            load the block of weights once
            for each row: products += weight * x * norm_weight; squares += x * x; sums += x
        out = sum(products) * 1 / rms(x), + bias, activation, + residual

The scale of a norm is one number per row and is multiplied in after the product, so that weights are loaded
before the row is known. Sums have a fixed order, so a seed gives the same tokens each time.

`attend`: qkv (rows, 3 · heads · width); keys, values (rows, heads, span, width). One program is one head of one
row: it rotates q and k, stores k and v after the row's cached positions, and attends to all positions up to
there in blocks, with a running maximum (flash attention).

PDL (programmatic dependent launch): the next kernel starts, and fetches its weights, while this one ends.
Before its `gdc_wait` a kernel reads weights only, which never change, and writes nothing; after it, the
previous kernel has ended, and that one ended after the one before it. So memory that torch reuses two kernels
later is no longer read, and a kernel without PDL waits for everything.

Reference: `PackedT3.step` by library calls (tests/backends/cuda/test_t3_kernels.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from nightingale.backends.cuda.prefetch_kernels import prefetch
from nightingale.backends.cuda.t3.packed_weights import RotationTable
from nightingale.backends.cuda.triton_support import Tuning, launch

MAX_ROWS = 4
"""Rows of the `linear` kernel, which are written out and not an axis."""
NO_NORM, RMS_NORM, LAYER_NORM = 0, 1, 2
LINE = tl.constexpr(64)
"""Values of 16 bits in a cache line."""


@triton.jit
def _add_block(
    sums, x_ptr, w, u, norm, at,
    row: tl.constexpr, INPUTS: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Add a block of one row to its sums: the products, and those of x that the norm needs."""
    product, gated, square, total = sums
    x = tl.load(x_ptr + row * INPUTS + at).to(tl.float32)
    if NORM != 0:
        square += x * x
        total += x
        x = x * norm
    product += w * x
    if GATED:
        gated += u * x
    return product, gated, square, total


@triton.jit
def _store_row(
    sums, weighted, bias_ptr, residual_ptr, out_ptr, out, outputs,
    row: tl.constexpr, INPUTS: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    product, gated, square, total = sums
    real, scale = out < outputs, 1.0
    value = tl.sum(product, axis=1)
    if NORM == 1:
        scale = 1.0 / tl.sqrt(tl.sum(square, axis=1) / INPUTS + 1e-5)
        value = value * scale
    if NORM == 2:
        mean = tl.sum(total, axis=1) / INPUTS
        scale = 1.0 / tl.sqrt(tl.sum(square, axis=1) / INPUTS - mean * mean + 1e-5)
        value = (value - mean * tl.sum(weighted, axis=1)) * scale
    if BIAS:
        value += tl.load(bias_ptr + out, mask=real, other=0.0).to(tl.float32)
    if GATED:
        value = value * tl.sigmoid(value) * (tl.sum(gated, axis=1) * scale)
    if GELU:
        inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        value = value * tl.sigmoid(2.0 * inner)
    if RESIDUAL:
        value += tl.load(residual_ptr + row * outputs + out, mask=real, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * outputs + out, value.to(out_ptr.dtype.element_ty), mask=real)


@triton.jit
def _linear_kernel(
    x_ptr, norm_ptr, weight_ptr, bias_ptr, residual_ptr, out_ptr,
    outputs,
    INPUTS: tl.constexpr, ROWS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    PREFETCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[r, n] = norm(x)[r] · weight[n] + bias[n]; gated: silu of that, times norm(x)[r] · weight[outputs + n].

    A block of weights is multiplied where it was loaded, and summed once, at the end.
    """
    out = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    real = (out < outputs)[:, None]
    places = weight_ptr + out[:, None] * INPUTS + tl.arange(0, BLOCK_IN)[None, :]
    if PDL:
        gdc_launch_dependents()
    w = tl.load(places, mask=real, other=0.0).to(tl.float32)
    u = w
    if GATED:
        u = tl.load(places + outputs * INPUTS, mask=real, other=0.0).to(tl.float32)
    if PDL:
        # The first block is on its way to registers, the others to L2.
        if PREFETCH and (BLOCK_IN < INPUTS) and (BLOCK_IN >= LINE):
            LINES: tl.constexpr = BLOCK_IN // LINE
            lines = tl.minimum(out, outputs - 1)[:, None] * INPUTS + tl.arange(0, LINES)[None, :] * LINE
            for start in tl.static_range(BLOCK_IN, INPUTS, BLOCK_IN):
                prefetch(weight_ptr + lines + start)
                if GATED:
                    prefetch(weight_ptr + lines + (outputs * INPUTS + start))
        gdc_wait()
    zeros = tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32)
    weighted = zeros
    sums = ((zeros, zeros, zeros, zeros),) * ROWS
    for start in tl.static_range(0, INPUTS, BLOCK_IN):
        # The same for each output: so it has the layout of the weights, and nothing is moved between threads.
        at = start + tl.arange(0, BLOCK_IN)[None, :] + tl.zeros([BLOCK_OUT, BLOCK_IN], tl.int32)
        if start > 0:
            w = tl.load(places + start, mask=real, other=0.0).to(tl.float32)
            if GATED:
                u = tl.load(places + outputs * INPUTS + start, mask=real, other=0.0).to(tl.float32)
        norm = zeros
        if NORM != 0:
            norm = tl.load(norm_ptr + at).to(tl.float32)
        if NORM == 2:
            weighted += w * norm
        added = ()
        for row in tl.static_range(ROWS):
            added += (_add_block(sums[row], x_ptr, w, u, norm, at, row, INPUTS, NORM, GATED),)  # type: ignore
        sums = added
    for row in tl.static_range(ROWS):
        _store_row(
            sums[row], weighted, bias_ptr, residual_ptr, out_ptr, out, outputs, row,
            INPUTS, NORM, GATED, GELU, BIAS, RESIDUAL,
        )  # fmt: skip


@triton.jit
def _rotation(cos_ptr, sin_ptr, position, at, WIDTH: tl.constexpr, ROTATE: tl.constexpr):
    cos, sin = at * 0.0, at * 0.0
    if ROTATE:
        cos = tl.load(cos_ptr + position * WIDTH + at).to(tl.float32)
        sin = tl.load(sin_ptr + position * WIDTH + at).to(tl.float32) * tl.where(at < WIDTH // 2, -1.0, 1.0)
    return cos, sin


@triton.jit
def _rotated(at_ptr, at, other, cos, sin, ROTATE: tl.constexpr):
    value = tl.load(at_ptr + at)
    if ROTATE:
        kind = value.dtype
        value = (value.to(tl.float32) * cos + tl.load(at_ptr + other).to(tl.float32) * sin).to(kind)
    return value


@triton.jit
def _attend_kernel(
    qkv_ptr, cos_ptr, sin_ptr, keys_ptr, values_ptr, lengths_ptr, out_ptr,
    row_stride, head_stride, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ROTATE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rotate q and k of one head of one row, append k and v to the cache, and attend to all of it."""
    row, head = tl.program_id(0), tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.arange(0, WIDTH)
    other = (at + WIDTH // 2) % WIDTH
    length = tl.load(lengths_ptr + row)
    cos, sin = _rotation(cos_ptr, sin_ptr, length, at, WIDTH, ROTATE)
    q_ptr = qkv_ptr + row * 3 * HEADS * WIDTH + head * WIDTH
    q = _rotated(q_ptr, at, other, cos, sin, ROTATE).to(tl.float32) * scale
    k = _rotated(q_ptr + HEADS * WIDTH, at, other, cos, sin, ROTATE)
    v = tl.load(q_ptr + 2 * HEADS * WIDTH + at)
    base = row.to(tl.int64) * row_stride + head * head_stride
    tl.store(keys_ptr + base + length * WIDTH + at, k)
    tl.store(values_ptr + base + length * WIDTH + at, v)
    # The new position first: it is in registers, and gives the running maximum a start.
    maximum = tl.sum(q * k.to(tl.float32), axis=0)
    weight = maximum * 0.0 + 1.0
    total = v.to(tl.float32)
    for start in range(0, length, BLOCK):
        time = start + tl.arange(0, BLOCK)
        past = time[:, None] < length
        place = base + time[:, None] * WIDTH + at[None, :]
        # Both loads are issued before either is used.
        past_k = tl.load(keys_ptr + place, mask=past, other=0.0)
        past_v = tl.load(values_ptr + place, mask=past, other=0.0)
        score = tl.where(time < length, tl.sum(past_k.to(tl.float32) * q[None, :], axis=1), float("-inf"))
        higher = tl.maximum(maximum, tl.max(score, axis=0))
        share = tl.exp(score - higher)
        shrink = tl.exp(maximum - higher)
        weight = weight * shrink + tl.sum(share, axis=0)
        total = total * shrink + tl.sum(past_v.to(tl.float32) * share[:, None], axis=0)
        maximum = higher
    tl.store(out_ptr + row * HEADS * WIDTH + head * WIDTH + at, (total / weight).to(out_ptr.dtype.element_ty))


@triton.jit
def _rms_norm_kernel(x_ptr, norm_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * WIDTH + at, mask=at < WIDTH, other=0.0).to(tl.float32)
    kind = out_ptr.dtype.element_ty
    x = (x / tl.sqrt(tl.sum(x * x, axis=0) / WIDTH + 1e-5)).to(kind).to(tl.float32)
    norm = tl.load(norm_ptr + at, mask=at < WIDTH, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + at, (x * norm).to(kind), mask=at < WIDTH)


@triton.jit
def _swiglu_kernel(x_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kind = out_ptr.dtype.element_ty
    gate = tl.load(x_ptr + row * 2 * WIDTH + at, mask=at < WIDTH, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * WIDTH + WIDTH + at, mask=at < WIDTH, other=0.0).to(tl.float32)
    value = (gate * tl.sigmoid(gate)).to(kind).to(tl.float32) * up
    tl.store(out_ptr + row * WIDTH + at, value.to(kind), mask=at < WIDTH)


def linear(
    x: Tensor,
    weight: Tensor,
    tuning: Tuning,
    *,
    norm_weight: Tensor | None = None,
    norm: int = NO_NORM,
    bias: Tensor | None = None,
    gated: bool = False,
    gelu: bool = False,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return norm(x) (rows, inputs) times weight (outputs, inputs), and what follows; write it to `out`, if given."""
    rows, inputs = x.shape
    outputs = weight.shape[0] // 2 if gated else weight.shape[0]
    if out is None:
        out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    # So many values are held for each row, twice as many if gated: no more than there are registers for.
    block_out = max(
        1, tuning.block_out // ((2 if gated else 1) * (1 if rows <= 2 else 2 if rows <= 4 else 4))
    )
    launch(
        _linear_kernel, (-(-outputs // block_out),),
        x, x if norm_weight is None else norm_weight, weight, x if bias is None else bias,
        x if residual is None else residual, out, outputs,
        INPUTS=inputs, ROWS=rows, BLOCK_OUT=block_out,
        BLOCK_IN=min(tuning.block_in, inputs & -inputs),  # a power of two that divides them
        NORM=norm, GATED=gated, GELU=gelu, BIAS=bias is not None, RESIDUAL=residual is not None,
        PREFETCH=tuning.prefetch, num_warps=tuning.warps, **_pdl(tuning.pdl),
    )  # fmt: skip
    return out


def _pdl(enabled: bool) -> dict[str, bool]:
    return {"PDL": True, "launch_pdl": True} if enabled else {"PDL": False}


def attend(
    qkv: Tensor,
    rotation: RotationTable | None,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    *,
    pdl: bool = False,
) -> Tensor:
    """Append the new token of each row to the caches at `lengths` (rows,), attend, and return (rows, width).

    qkv: (rows, 3 · width); keys, values: (rows, heads, span, head width), of any row stride.
    """
    rows, heads, _, width = keys.shape
    assert qkv.is_contiguous()
    assert lengths.is_contiguous()
    out = torch.empty(rows, heads * width, dtype=qkv.dtype, device=qkv.device)
    cos, sin = rotation or (qkv, qkv)
    launch(
        _attend_kernel, (rows, heads),
        qkv, cos, sin, keys, values, lengths, out, keys.stride(0), keys.stride(1), width**-0.5,
        HEADS=heads, WIDTH=width, BLOCK=128, ROTATE=rotation is not None,
        num_warps=4, **_pdl(pdl),
    )  # fmt: skip
    return out


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return the RMS norm of x (rows, width)."""
    rows, width = x.shape
    out = torch.empty_like(x)
    launch(
        _rms_norm_kernel,
        (rows,),
        x,
        weight,
        out,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4,
    )
    return out


def swiglu(x: Tensor) -> Tensor:
    """Return silu of the first half of x (rows, 2 · width) times the second half: (rows, width)."""
    rows, width = x.shape[0], x.shape[1] // 2
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    block = min(1024, triton.next_power_of_2(width))
    launch(_swiglu_kernel, (rows, -(-width // block)), x, out, WIDTH=width, BLOCK=block, num_warps=4)
    return out
