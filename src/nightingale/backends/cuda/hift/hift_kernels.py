"""The Triton kernel of HiFT's convolutions, over rows of channels.

An activation is (planes, windows, length, channels): a window is an utterance of the batch, and the resblocks of a
stage, which read the same input, are planes that one launch computes. A window has its own number of real rows.
Rows beyond them are neither read nor written, so they need not be zero, and cost nothing.

By library calls a convolution is a pass over its input that sets rows beyond the end to zero, one for Snake, a
change of layout, the product, another change and a sum. Here it is one kernel, with a tile of BM rows by BN outputs,
and tl.dot over blocks of BK inputs of each tap. What reads a convolution's result is known, so the tile applies the
next activation before it stores it:

    resblock pair    h = snake2(conv1(a))   |   x += conv2(h), a = snake1 of the next pair (x)
    last pair        a = leaky_relu(mean of x + conv2(h) over the resblocks), one sum over all their taps
    upsampling       a convolution with `stride` times the outputs: input row i is output rows stride · i …
    downsampling     a convolution whose rows are `stride` rows apart

So Snake is computed once for a value, not for each tap. Sums are in float32, in registers. Values are stored in
float16, with the ten bits that TF32 has as well, or in float32. Reference: the library calls of
bucketed_vocoder.py (tests/backends/cuda/test_hift_kernels.py).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _sin_squared(x):
    """Return sin(x)² in float32, by a polynomial within half a period."""
    k = tl.floor(x * 0.3183098861837907 + 0.5)
    # π in three parts, so that hardly anything is lost for large x.
    r = x - k * 3.1414794921875
    r = r - k * 0.00011315941810607910
    r = r - k * 1.9841872589410059e-09
    s = r * r
    u = 2.6083159809786594e-06 * s - 0.00019810690719168633
    u = u * s + 0.00833307858556509
    u = u * s - 0.16666659712791443
    sine = r + r * s * u
    return sine * sine


@triton.jit
def _store(ptr, value, mask, ROUND: tl.constexpr):
    """Store float32 values. float16 saturates; ROUND: float32 is rounded to TF32, which products truncate to."""
    kind = ptr.dtype.element_ty
    if kind == tl.float16:
        value = tl.minimum(tl.maximum(value, -65504.0), 65504.0)
    if ROUND:
        value = ((value.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    tl.store(ptr, value.to(kind), mask=mask)


@triton.jit
def _add_taps(
    total, x_ptr, weight_ptr, table_ptr, position, x_end, n, dilation,
    C: tl.constexpr, N: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STRIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the products of all taps of one plane. table: the number of its first tap, its taps, its padding."""
    first, taps, left = tl.load(table_ptr), tl.load(table_ptr + 1), tl.load(table_ptr + 2)
    BLOCKS: tl.constexpr = (C + BK - 1) // BK
    for step in range(taps * BLOCKS):
        tap = step // BLOCKS
        k = step % BLOCKS * BK + tl.arange(0, BK)
        at = position * STRIDE + tap * dilation - left
        own = ((at >= 0) & (at < x_end))[:, None]
        wide = n[None, :] < N if N % BN else None
        if C % BK:
            own = own & (k < C)[None, :]
            wide = (n[None, :] < N) & (k < C)[:, None]
        x = tl.load(x_ptr + at[:, None] * C + k[None, :], mask=own, other=0.0)
        w_ptr = weight_ptr + ((first + tap) * N + n[None, :]) * C + k[:, None]
        w = tl.load(w_ptr) if wide is None else tl.load(w_ptr, mask=wide, other=0.0)
        total = tl.dot(x, w, total, input_precision=PRECISION)
    return total


_SIZES = [
    "windows", "dilation", "x_plane", "x_length", "x_rate", "x_extra", "out_plane", "out_length", "out_offset",
    "rate", "extra", "other_plane",
]  # fmt: skip


@triton.jit(do_not_specialize=_SIZES)
def _hift_conv_kernel(
    x_ptr, weight_ptr, bias_ptr, table_ptr, frames_ptr, other_ptr, snake_ptr, out_ptr, active_ptr,
    windows, dilation, x_plane, x_length, x_rate, x_extra, out_plane, out_length, out_offset,
    rate, extra, other_plane, scale, slope,
    C: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SUMMED: tl.constexpr, OTHERS: tl.constexpr, SNAKES: tl.constexpr, LEAKY: tl.constexpr, STORE: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out = scale · (conv(x) + bias + others); active = snake(out) or leaky_relu(out). One plane of a window.

    All sizes are in rows. A window of `frames` has frames · x_rate + x_extra real rows of x, and
    frames · rate + extra of the result. WIDTH: channels of a row of `out`, of which N is a multiple.

    SUMMED: planes of x whose convolutions are added up; OTHERS: planes of `other` that are added; SNAKES:
    activations of `out`, each a plane of `active`, by parameters (planes, SNAKES, 2, N): α and 1 / α.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    plane, window = tl.program_id(2) // windows, tl.program_id(2) % windows
    frames = tl.load(frames_ptr + window)
    # A window without frames has no rows: its memory may hold anything, and is not read.
    end, x_end = tl.where(frames > 0, frames * rate + extra, 0), frames * x_rate + x_extra
    if tl.program_id(0) * BM >= end:
        return
    position = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    wide = n < N
    for number in tl.static_range(SUMMED):
        source = plane + number
        total = _add_taps(
            total, x_ptr + (source * x_plane + window * x_length) * C, weight_ptr, table_ptr + 3 * source,
            position, x_end, n, dilation, C, N, BN, BK, STRIDE, PRECISION,
        )  # fmt: skip
        total += tl.load(bias_ptr + source * N + n, mask=wide, other=0.0)[None, :]
    here = (position < end)[:, None] & wide[None, :]
    place = position[:, None] * N + n[None, :]
    for number in tl.static_range(OTHERS):
        other = other_ptr + ((plane + number) * other_plane + window * out_length) * WIDTH + place
        total += tl.load(other, mask=here, other=0.0).to(tl.float32)
    total = total * scale
    ROUND: tl.constexpr = PRECISION == "tf32" and x_ptr.dtype.element_ty == tl.float32
    if STORE:
        _store(
            out_ptr + (plane * out_plane + window * out_length + out_offset) * WIDTH + place,
            total,
            here,
            False,
        )
    for number in tl.static_range(SNAKES):
        own = plane * SNAKES + number
        alpha = tl.load(snake_ptr + 2 * own * N + n, mask=wide, other=0.0)[None, :]
        inverse = tl.load(snake_ptr + (2 * own + 1) * N + n, mask=wide, other=0.0)[None, :]
        active = total + _sin_squared(total * alpha) * inverse
        _store(active_ptr + (own * out_plane + window * out_length) * N + place, active, here, ROUND)
    if LEAKY:
        active = tl.where(total > 0, total, total * slope)
        _store(active_ptr + (window * out_length) * N + place, active, here, ROUND)
