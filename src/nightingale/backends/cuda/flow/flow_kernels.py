"""Triton kernels of the flow's estimator, over packed rows.

The frames of all windows of a batch are the rows of one matrix (rows, channels): a window begins at a multiple
of TILE rows, whatever the lengths of the others, so a batch has hardly any padding. The unconditional rows of
a guided flow follow the conditional ones. Two tables say where windows begin and end, one entry per TILE rows:
only convolutions and attention need them.

By library calls one evaluation of the estimator is over a thousand kernels. Here rows are never transposed,
and each norm, activation, bias and sum is part of a product:

    resnet       conv · norm · mish · time  |  conv · norm · mish  |  1×1 of the input + h, statistics
    transformer  norm · qkv  |  attend  |  out + x, statistics  |  norm · up · gelu  |  down + x, statistics

A product of normalized rows is computed from the rows as they are. With a norm's weight γ and bias β,

    norm(x) · W + b  =  (x · W' - mean · sum(W')) / deviation + b',    W' = γ · W,    b' = b + β · W

where sum(W') is over the inputs. Mean and deviation of each row are written by the product before it, one pair for
each tile of outputs. So tiles need not have all outputs of their rows, and nothing is normalized twice.

Kernels, with a tile of BM rows by BN outputs, and tl.dot over blocks of BK inputs:

    _linear_kernel   x (rows, K), weight (outputs, K)        out = gelu(norm(x) · weight + bias) + other, statistics
    _conv_kernel     x (rows, C), weight (3, outputs, C)     causal, three taps, zeros before a window
    _attend_kernel   qkv (rows, 3, HEADS, WIDTH)             flash attention within each window
    _euler_kernel    x (rows, BANDS)                         x += width · velocity, guidance included

Products are summed in float32, and normalized rows are never rounded, so the result is nearer
to float32 than the library's in bfloat16. PDL: see t3/t3_kernels.py. Reference: `FlowSteps.solve`
(tests/backends/cuda/test_flow_kernels.py).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from nightingale.backends.cuda.prefetch_kernels import prefetch


@triton.jit
def _mish(x):
    e = tl.exp(tl.minimum(x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


@triton.jit
def _gelu(x):
    """Return GELU; erf by Abramowitz and Stegun 7.1.26, whose error of 1.5e-7 is that of float32, is faster."""
    z = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * z)
    tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail = 0.5 * tail * tl.exp(-z * z)  # the normal distribution's, beyond |x|
    return x * tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit
def _layer_norm(x, channel, weight_ptr, bias_ptr, C: tl.constexpr):
    """Return the layer norm of rows (M, C) in float32."""
    mean = tl.sum(x, axis=1) / C
    x = x - mean[:, None]
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / C + 1e-5)
    weight = tl.load(weight_ptr + channel).to(tl.float32)
    return x * scale[:, None] * weight[None, :] + tl.load(bias_ptr + channel).to(tl.float32)[None, :]


@triton.jit
def _row_statistics(stats_ptr, r, rows, PARTS: tl.constexpr, SIZE: tl.constexpr):
    """Return mean and 1 / deviation of rows from those of their PARTS, of SIZE values each."""
    part = tl.arange(0, PARTS)[:, None]
    place = stats_ptr + 2 * (part * rows + tl.minimum(r, rows - 1)[None, :])
    means, squares = tl.load(place), tl.load(place + 1)
    mean = tl.sum(means, axis=0) / PARTS
    apart = means - mean[None, :]
    variance = tl.sum(squares + SIZE * apart * apart, axis=0) / (PARTS * SIZE)
    return mean, 1.0 / tl.sqrt(variance + 1e-5)


@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x_ptr, stats_ptr, weight_ptr, sums_ptr, bias_ptr, other_ptr, out_ptr, out_stats_ptr,
    rows, outputs, x_stride, other_stride, out_stride,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
    GELU: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, STATS: tl.constexpr,
    ROWS_FIRST: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[r, n] = gelu(norm(x[r]) · weight[n] + bias[n]) + other[r, n]; each part is optional.

    K: width of x; PARTS: of the statistics of x, if it is normalized, else 0, with the sums (outputs,) of the weights.
    STATS: mean and squared deviation of each row of the tile are stored to out_stats (tiles, rows, 2).
    ROWS_FIRST: the grid is (tiles of rows, tiles of outputs), else the other way round.
    TMA: x_ptr and weight_ptr are tensor descriptors with blocks of (BM, BK) and (BN, BK).
    """
    tile = tl.program_id(0) if ROWS_FIRST else tl.program_id(1)
    part = tl.program_id(1) if ROWS_FIRST else tl.program_id(0)
    r = tile * BM + tl.arange(0, BM)
    n = part * BN + tl.arange(0, BN)
    real, wide = (r < rows)[:, None], n < outputs
    if PDL:
        gdc_launch_dependents()
        if not TMA and tile == 0:
            for first in tl.static_range(0, K, BK):
                prefetch(weight_ptr + tl.minimum(n, outputs - 1) * K + first)
        gdc_wait()
    # What follows the product is loaded before it, so that a tile does not end with waiting.
    if PARTS:
        mean, scale = _row_statistics(stats_ptr, r, rows, PARTS, K // PARTS)
        sums = tl.load(sums_ptr + n, mask=wide, other=0.0)
    if BIAS:
        bias = tl.load(bias_ptr + n, mask=wide, other=0.0).to(tl.float32)
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        if TMA:
            x = x_ptr.load([tile * BM, start])
            w = weight_ptr.load([part * BN, start]).T
        else:
            k = start + tl.arange(0, BK)
            x = tl.load(x_ptr + r[:, None] * x_stride + k[None, :], mask=real, other=0.0)
            w = tl.load(weight_ptr + n[None, :] * K + k[:, None], mask=wide[None, :], other=0.0)
        total = tl.dot(x, w, total, input_precision=PRECISION)
    if PARTS:
        total = (total - mean[:, None] * sums[None, :]) * scale[:, None]
    if BIAS:
        total += bias[None, :]
    here = real & wide[None, :]
    if GELU:
        total = _gelu(total)
    if ADD:
        other = other_ptr + r[:, None] * other_stride + n[None, :]
        total += tl.load(other, mask=here, other=0.0).to(tl.float32)
    stored = total.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + r[:, None] * out_stride + n[None, :], stored, mask=here)
    if STATS:
        # Of the rounded rows, which the next product reads.
        total = stored.to(tl.float32)
        mean = tl.sum(total, axis=1) / BN
        apart = total - mean[:, None]
        place = out_stats_ptr + 2 * (part * rows + r)
        tl.store(place, mean, mask=r < rows)
        tl.store(place + 1, tl.sum(apart * apart, axis=1), mask=r < rows)


@triton.jit(do_not_specialize=["rows"])
def _conv_kernel(
    x_ptr, norm_ptr, norm_bias_ptr, time_ptr, weight_ptr, bias_ptr, starts_ptr, out_ptr,
    rows, outputs, x_stride, out_stride,
    C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TILE: tl.constexpr,
    NORM: tl.constexpr, TIME: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Causal convolution of three taps. starts (rows / TILE,): the first row of each tile's window.

    NORM: the result is mish(norm(out)) + time (channels,), if TIME, and BN is all outputs.
    """
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    wide = n < outputs
    kind = x_ptr.dtype.element_ty
    if PDL:
        gdc_launch_dependents()
        if tl.program_id(0) == 0:
            for tap in tl.static_range(3):
                for first in tl.static_range(0, C, BK):
                    prefetch(weight_ptr + (tap * outputs + tl.minimum(n, outputs - 1)) * C + first)
        gdc_wait()
    start = tl.load(starts_ptr + r // TILE, mask=r < rows, other=0)
    total = tl.zeros([BM, BN], tl.float32)
    for tap in tl.static_range(3):
        at = r + tap - 2
        own = ((at >= start) & (r < rows))[:, None]
        for first in range(0, C, BK):
            k = first + tl.arange(0, BK)
            w_ptr = weight_ptr + (tap * outputs + n[None, :]) * C + k[:, None]
            w = tl.load(w_ptr, mask=wide[None, :], other=0.0)
            x = tl.load(x_ptr + at[:, None] * x_stride + k[None, :], mask=own, other=0.0)
            total = tl.dot(x, w, total, input_precision=PRECISION)
    total += tl.load(bias_ptr + n, mask=wide, other=0.0).to(tl.float32)[None, :]
    if NORM:
        total = _mish(_layer_norm(total, n, norm_ptr, norm_bias_ptr, BN))
        if TIME:
            total = total + tl.load(time_ptr + n).to(tl.float32)[None, :]
    here = (r < rows)[:, None] & wide[None, :]
    tl.store(out_ptr + r[:, None] * out_stride + n[None, :], total.to(kind), mask=here)


@triton.jit
def _attend_block(
    q, head_ptr, first, end, scale, maximum, weight, total,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BK: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend to BK keys from number `first` on, which are all seen if WHOLE."""
    key, at = first + tl.arange(0, BK), tl.arange(0, WIDTH)
    keys_ptr = head_ptr + HEADS * WIDTH + key[None, :] * (3 * HEADS * WIDTH) + at[:, None]
    values_ptr = head_ptr + 2 * HEADS * WIDTH + key[:, None] * (3 * HEADS * WIDTH) + at[None, :]
    if WHOLE:
        k, v = tl.load(keys_ptr), tl.load(values_ptr)
        score = tl.dot(q, k, input_precision=PRECISION)
    else:
        seen = key < end
        k = tl.load(keys_ptr, mask=seen[None, :], other=0.0)
        v = tl.load(values_ptr, mask=seen[:, None], other=0.0)
        score = tl.where(seen[None, :], tl.dot(q, k, input_precision=PRECISION), float("-inf"))
    higher = tl.maximum(maximum, tl.max(score, axis=1) * scale)
    share = tl.exp2(score * scale - higher[:, None])
    shrink = tl.exp2(maximum - higher)
    weight = weight * shrink + tl.sum(share, axis=1)
    total = tl.dot(share.to(q.dtype), v, total * shrink[:, None], input_precision=PRECISION)
    return higher, weight, total


@triton.jit
def _attend_kernel(
    qkv_ptr, starts_ptr, ends_ptr, out_ptr, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, TILE: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attend from BQ rows of one head to the rows of their window, whose first and last + 1 the tables have."""
    first_row, head = tl.program_id(0) * BQ, tl.program_id(1)
    r, tile = first_row + tl.arange(0, BQ), first_row // TILE
    at = tl.arange(0, WIDTH)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    head_ptr = qkv_ptr + head * WIDTH
    q = tl.load(head_ptr + r[:, None] * (3 * HEADS * WIDTH) + at[None, :])
    start, end = tl.load(starts_ptr + tile), tl.load(ends_ptr + tile)
    maximum = tl.zeros([BQ], tl.float32) - float("inf")
    weight = tl.zeros([BQ], tl.float32)
    total = tl.zeros([BQ, WIDTH], tl.float32)
    whole = start + (end - start) // BK * BK
    for first in range(start, whole, BK):
        maximum, weight, total = _attend_block(
            q, head_ptr, first, end, scale, maximum, weight, total, HEADS, WIDTH, BK, True, PRECISION
        )
    if whole < end:
        maximum, weight, total = _attend_block(
            q, head_ptr, whole, end, scale, maximum, weight, total, HEADS, WIDTH, BK, False, PRECISION
        )
    total = total / weight[:, None]
    out = r[:, None] * (HEADS * WIDTH) + head * WIDTH + at[None, :]
    tl.store(out_ptr + out, total.to(qkv_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["count"])
def _euler_kernel(
    x_ptr, velocity_ptr, width_ptr, input_ptr, count, input_stride, guidance,
    BANDS: tl.constexpr, GUIDED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Move x, of `count` values, by one step; write it to the estimator's input, in both halves if guided."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = i < count
    x = tl.load(x_ptr + i, mask=real, other=0.0)
    velocity = tl.load(velocity_ptr + i, mask=real, other=0.0)
    if GUIDED:
        unconditional = tl.load(velocity_ptr + count + i, mask=real, other=0.0)
        velocity = (1.0 + guidance) * velocity - guidance * unconditional
    x = x + tl.load(width_ptr) * velocity
    tl.store(x_ptr + i, x, mask=real)
    place = input_ptr + (i // BANDS) * input_stride + i % BANDS
    tl.store(place, x.to(input_ptr.dtype.element_ty), mask=real)
    if GUIDED:
        tl.store(place + count // BANDS * input_stride, x.to(input_ptr.dtype.element_ty), mask=real)
