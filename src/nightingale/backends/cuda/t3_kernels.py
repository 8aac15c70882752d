"""T3's decode step in a few kernels a layer, written in Triton.

Why it helps here. One token reads every weight once; with two rows the arithmetic is nothing. A layer by
library calls is two to four dozen kernels, most of which only carry a few kilobytes from one to the next.
Here every norm, rotation, append, activation and sum is part of the kernel that reads the weights beside it:

    norm · qkv  |  rotate · append · attend  |  out + x  |  norm · up · activation  |  down + x

Each program multiplies a few output columns with all rows, so rows must be few. Above MOST_ROWS the library's
products are as good, and the kernels do what lies between them. Sums have one order, so a seed gives the same
tokens each time.

A norm's one number for a row is multiplied in after the product and not before: so the weights are asked for
before the row is known. `early`: the next kernel may start, and ask for its weights, while this one ends; all
else waits for that end. Why nothing is read too soon or written too late: before its `gdc_wait` a kernel
reads weights only, which nobody writes, and writes nothing; after it the kernel before has ended, and that
one ended after the one before it. So memory that torch gives out again, two kernels later, is no longer
looked at; and a kernel that is not early waits for all.

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
from triton.language.extra.cuda import (  # type: ignore[import-not-found, unused-ignore]
    gdc_launch_dependents,
    gdc_wait,
)

MOST_ROWS = 4
"""Of the kernels that do the products too; written out below, and not an axis."""
NO_NORM, RMS, LAYER = 0, 1, 2


@triton.jit
def _told(x_ptr, norm, row: tl.constexpr, at, square, total, INPUTS: tl.constexpr, NORM: tl.constexpr):
    """Some of a row as the product takes it, and what its norm needs to know of it."""
    x = tl.load(x_ptr + row * INPUTS + at).to(tl.float32)
    if NORM != 0:
        square += x * x
        total += x
        x = x * norm
    return x, square, total


@triton.jit
def _finish(
    product,
    gated,
    weighed,
    square,
    total,
    bias_ptr,
    residual_ptr,
    out_ptr,
    out,
    outputs,
    row: tl.constexpr,
    INPUTS: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    GELU: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    real, scale = out < outputs, 1.0
    value = tl.sum(product, axis=1)
    if NORM == 1:
        scale = 1.0 / tl.sqrt(tl.sum(square, axis=1) / INPUTS + 1e-5)
        value = value * scale
    if NORM == 2:
        mean = tl.sum(total, axis=1) / INPUTS
        scale = 1.0 / tl.sqrt(tl.sum(square, axis=1) / INPUTS - mean * mean + 1e-5)
        value = (value - mean * tl.sum(weighed, axis=1)) * scale
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
def _product_kernel(
    x_ptr,
    norm_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    outputs,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    GELU: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out[r, n] = norm(x)[r] · weight[n] + bias[n]; gated: silu of that, times the same with weight[outputs +
    n]. A block of weights is multiplied where it was loaded, and added up once, at the end."""
    out = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    real = (out < outputs)[:, None]
    places = weight_ptr + out[:, None] * INPUTS + tl.arange(0, BLOCK_IN)[None, :]
    if EARLY:
        gdc_launch_dependents()
    w = tl.load(places, mask=real, other=0.0).to(tl.float32)
    u = w
    if GATED:
        u = tl.load(places + outputs * INPUTS, mask=real, other=0.0).to(tl.float32)
    if EARLY:
        gdc_wait()
    none = tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32)
    empty = tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32)
    product_0, product_1, product_2, product_3 = none, none, none, none
    gated_0, gated_1, gated_2, gated_3, weighed = none, none, none, none, none
    square_0, square_1, square_2, square_3 = empty, empty, empty, empty
    total_0, total_1, total_2, total_3 = empty, empty, empty, empty
    for start in tl.static_range(0, INPUTS, BLOCK_IN):
        # As a block, each output seeing the same: so it lies where the weights do, and nothing is moved.
        at = start + tl.arange(0, BLOCK_IN)[None, :] + tl.zeros([BLOCK_OUT, BLOCK_IN], tl.int32)
        if start > 0:
            w = tl.load(places + start, mask=real, other=0.0).to(tl.float32)
            if GATED:
                u = tl.load(places + outputs * INPUTS + start, mask=real, other=0.0).to(tl.float32)
        norm = empty
        if NORM != 0:
            norm = tl.load(norm_ptr + at).to(tl.float32)
        if NORM == 2:
            weighed += w * norm
        x, square_0, total_0 = _told(x_ptr, norm, 0, at, square_0, total_0, INPUTS, NORM)
        product_0 += w * x
        if GATED:
            gated_0 += u * x
        if ROWS > 1:
            x, square_1, total_1 = _told(x_ptr, norm, 1, at, square_1, total_1, INPUTS, NORM)
            product_1 += w * x
            if GATED:
                gated_1 += u * x
        if ROWS > 2:
            x, square_2, total_2 = _told(x_ptr, norm, 2, at, square_2, total_2, INPUTS, NORM)
            product_2 += w * x
            if GATED:
                gated_2 += u * x
        if ROWS > 3:
            x, square_3, total_3 = _told(x_ptr, norm, 3, at, square_3, total_3, INPUTS, NORM)
            product_3 += w * x
            if GATED:
                gated_3 += u * x
    _finish(
        product_0, gated_0, weighed, square_0, total_0, bias_ptr, residual_ptr, out_ptr, out, outputs, 0,
        INPUTS, NORM, GATED, GELU, BIAS, RESIDUAL,
    )  # fmt: skip
    if ROWS > 1:
        _finish(
            product_1, gated_1, weighed, square_1, total_1, bias_ptr, residual_ptr, out_ptr, out, outputs, 1,
            INPUTS, NORM, GATED, GELU, BIAS, RESIDUAL,
        )  # fmt: skip
    if ROWS > 2:
        _finish(
            product_2, gated_2, weighed, square_2, total_2, bias_ptr, residual_ptr, out_ptr, out, outputs, 2,
            INPUTS, NORM, GATED, GELU, BIAS, RESIDUAL,
        )  # fmt: skip
    if ROWS > 3:
        _finish(
            product_3, gated_3, weighed, square_3, total_3, bias_ptr, residual_ptr, out_ptr, out, outputs, 3,
            INPUTS, NORM, GATED, GELU, BIAS, RESIDUAL,
        )  # fmt: skip


@triton.jit
def _turned(at_ptr, at, other, cos, sin, ROTATE: tl.constexpr):
    value = tl.load(at_ptr + at)
    if ROTATE:
        kind = value.dtype
        value = (value.to(tl.float32) * cos + tl.load(at_ptr + other).to(tl.float32) * sin).to(kind)
    return value


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
    ROTATE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One head of one row: its query and key turned, the key and value appended, the past attended to."""
    row, head = tl.program_id(0), tl.program_id(1)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.arange(0, WIDTH)
    other = (at + WIDTH // 2) % WIDTH
    length = tl.load(lengths_ptr + row)
    cos, sin = at * 0.0, at * 0.0
    if ROTATE:
        cos = tl.load(cos_ptr + length * WIDTH + at).to(tl.float32)
        sin = tl.load(sin_ptr + length * WIDTH + at).to(tl.float32) * tl.where(at < WIDTH // 2, -1.0, 1.0)
    q_ptr = qkv_ptr + row * 3 * HEADS * WIDTH + head * WIDTH
    q = _turned(q_ptr, at, other, cos, sin, ROTATE).to(tl.float32) * scale
    k = _turned(q_ptr + HEADS * WIDTH, at, other, cos, sin, ROTATE)
    v = tl.load(q_ptr + 2 * HEADS * WIDTH + at)
    base = row.to(tl.int64) * row_stride + head * head_stride
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
        # Both are asked for before either is used.
        known = tl.load(keys_ptr + place, mask=past, other=0.0)
        heard = tl.load(values_ptr + place, mask=past, other=0.0)
        score = tl.where(time < length, tl.sum(known.to(tl.float32) * q[None, :], axis=1), float("-inf"))
        higher = tl.maximum(most, tl.max(score, axis=0))
        share = tl.exp(score - higher)
        shrink = tl.exp(most - higher)
        weight = weight * shrink + tl.sum(share, axis=0)
        total = total * shrink + tl.sum(heard.to(tl.float32) * share[:, None], axis=0)
        most = higher
    tl.store(out_ptr + row * HEADS * WIDTH + head * WIDTH + at, (total / weight).to(out_ptr.dtype.element_ty))


@triton.jit
def _rms_kernel(x_ptr, norm_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
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


class Tuning(NamedTuple):
    """How a product is cut up. What is best is for the machine to say: benchmarks/gpu.py tries several
    (`--tunings`), and `fused.best` holds what an H200 said."""

    block_out: int = 8
    block_in: int = 256
    """With 8 numbers a thread a warp loads 256 at once: then nothing is added up across warps."""
    warps: int = 4
    early: bool = False


def can_start_early(device: torch.device) -> bool:
    """Only Hopper, and what came after it, can."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def product(
    x: Tensor,
    weight: Tensor,
    tuning: Tuning,
    *,
    norm: Tensor | None = None,
    kind: int = NO_NORM,
    bias: Tensor | None = None,
    gated: bool = False,
    gelu: bool = False,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """(rows, inputs) times (outputs, inputs), and what stands before and after it. dtype: the result's."""
    rows, inputs = x.shape
    outputs = weight.shape[0] // 2 if gated else weight.shape[0]
    out = torch.empty(rows, outputs, dtype=dtype or x.dtype, device=x.device)
    # As many numbers are held for each row, and twice as many if gated: no more than there are registers for.
    block_out = max(1, tuning.block_out // ((2 if gated else 1) * (2 if rows > 2 else 1)))
    early = {"launch_pdl": True} if tuning.early else {}
    _product_kernel[(-(-outputs // block_out),)](
        x,
        x if norm is None else norm,
        weight,
        x if bias is None else bias,
        x if residual is None else residual,
        out,
        outputs,
        INPUTS=inputs,
        ROWS=rows,
        BLOCK_OUT=block_out,
        BLOCK_IN=min(tuning.block_in, inputs & -inputs),  # a power of two that divides them
        NORM=kind,
        GATED=gated,
        GELU=gelu,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        EARLY=tuning.early,
        num_warps=tuning.warps,
        **early,
    )
    return out


def attend(
    qkv: Tensor,
    turn: tuple[Tensor, Tensor] | None,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    *,
    early: bool = False,
) -> Tensor:
    """qkv: (rows, 3 · width) -> (rows, width). turn: cosines and sines of every position there may be,
    (positions, head width) each; keys, values: (rows, heads, span, head width), of any row stride, written at
    `lengths`."""
    rows, heads, _, width = keys.shape
    assert qkv.is_contiguous(), "the kernels count on it"
    assert lengths.is_contiguous(), "the kernels count on it"
    heard = torch.empty(rows, heads * width, dtype=qkv.dtype, device=qkv.device)
    cos, sin = turn or (qkv, qkv)
    _attend_kernel[(rows, heads)](
        qkv,
        cos,
        sin,
        keys,
        values,
        lengths,
        heard,
        keys.stride(0),
        keys.stride(1),
        width**-0.5,
        HEADS=heads,
        WIDTH=width,
        BLOCK=128,
        ROTATE=turn is not None,
        EARLY=early,
        num_warps=4,
        **({"launch_pdl": True} if early else {}),
    )
    return heard


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """(rows, width), each row's root mean square made one: `layers.rms_norm` in one kernel."""
    rows, width = x.shape
    out = torch.empty_like(x)
    _rms_kernel[(rows,)](x, weight, out, WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=4)
    return out


def swiglu(x: Tensor) -> Tensor:
    """(rows, 2 · width) -> (rows, width): silu of the first half times the second."""
    rows, width = x.shape[0], x.shape[1] // 2
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    block = min(1024, triton.next_power_of_2(width))
    _swiglu_kernel[(rows, -(-width // block))](x, out, WIDTH=width, BLOCK=block, num_warps=4)
    return out
