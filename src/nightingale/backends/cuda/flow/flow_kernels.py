"""Triton kernels of the flow's estimator.

A block of a stream is fifty to three hundred rows of 256 channels. Nothing in it is large, and by library
calls one pass of the estimator is over a thousand kernels, ten times per block. Here activations stay (batch,
frames, channels), so nothing is transposed, and each norm, activation, bias and sum is part of the product
beside it:

    resnet       conv  |  norm · mish · time · conv  |  1×1 of the input + norm · mish
    transformer  norm · qkv  |  attend  |  out + x  |  norm · up · gelu  |  down + x

Kernels, with a tile of BM rows by BN outputs per program, and tl.dot over blocks of BK inputs:

    _linear_kernel   x (rows, K), weight (outputs, K)            out = after(before(x) · weight + bias)
    _conv_kernel     x (batch, frames, C), weight (3, outputs, C)  causal; reads and saves the state
    _attend_kernel   qkv (batch, frames, 3, HEADS, WIDTH)        flash attention over the block and the prompt
    _euler_kernel    x (utterances, frames, BANDS)               x += width · velocity, guidance included

The convolution's kernel reads the state that the previous block saved and saves its own. Products are summed
in float32 and nothing is rounded between a norm and its product, so the result is nearer to float32 than the
library's in bfloat16. PDL: see t3/t3_kernels.py. Reference: `FlowSteps.solve`
(tests/backends/cuda/test_flow_kernels.py).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NONE, NORM, NORM_MISH = 0, 1, 2
"""Operations on the rows before a product."""
PLAIN, GELU, ADD, ADD_NORM_MISH = 0, 1, 2, 3
"""Operations after it: none, an activation, + other, + mish(norm(other))."""


@triton.jit
def _mish(x):
    e = tl.exp(tl.minimum(x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


@triton.jit
def _layer_norm(x, channel, weight_ptr, bias_ptr, C: tl.constexpr):
    """Return the layer norm of rows (M, C) in float32."""
    mean = tl.sum(x, axis=1) / C
    x = x - mean[:, None]
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / C + 1e-5)
    weight = tl.load(weight_ptr + channel).to(tl.float32)
    return x * scale[:, None] * weight[None, :] + tl.load(bias_ptr + channel).to(tl.float32)[None, :]


@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x_ptr, norm_ptr, norm_bias_ptr, weight_ptr, bias_ptr, other_ptr, out_ptr,
    rows, outputs, x_stride, other_stride, out_stride,
    K: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out[r, n] = after(before(x[r]) · weight[n] + bias[n]). K: width of x; C: width of `other`."""
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    real, wide = (r < rows)[:, None], n < outputs
    kind = x_ptr.dtype.element_ty
    if PDL:
        gdc_launch_dependents()
    if BEFORE == 0:
        if PDL:
            gdc_wait()
        total = tl.zeros([BM, BN], tl.float32)
        for start in range(0, K, BK):
            k = start + tl.arange(0, BK)
            x = tl.load(x_ptr + r[:, None] * x_stride + k[None, :], mask=real, other=0.0)
            w = tl.load(weight_ptr + n[None, :] * K + k[:, None], mask=wide[None, :], other=0.0)
            total = tl.dot(x, w, total, input_precision=PRECISION)
    else:
        k = tl.arange(0, K)
        w = tl.load(weight_ptr + n[None, :] * K + k[:, None], mask=wide[None, :], other=0.0)
        if PDL:
            gdc_wait()
        x = tl.load(x_ptr + r[:, None] * x_stride + k[None, :], mask=real, other=0.0).to(tl.float32)
        x = _layer_norm(x, k, norm_ptr, norm_bias_ptr, K)
        if BEFORE == 2:
            x = _mish(x)
        total = tl.dot(x.to(kind), w, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias_ptr + n, mask=wide, other=0.0).to(tl.float32)[None, :]
    here = real & wide[None, :]
    if AFTER == 1:
        total = total * 0.5 * (1.0 + tl.erf(total * 0.7071067811865476))
    other_row = other_ptr + r[:, None] * other_stride
    if AFTER == 2:
        total += tl.load(other_row + n[None, :], mask=here, other=0.0).to(tl.float32)
    if AFTER == 3:
        c = tl.arange(0, C)
        whole = tl.load(other_row + c[None, :], mask=real, other=0.0).to(tl.float32)
        mean = tl.sum(whole, axis=1) / C
        whole = whole - mean[:, None]
        scale = 1.0 / tl.sqrt(tl.sum(whole * whole, axis=1) / C + 1e-5)
        part = tl.load(other_row + n[None, :], mask=here, other=0.0).to(tl.float32)
        part = (part - mean[:, None]) * scale[:, None]
        part = part * tl.load(norm_ptr + n, mask=wide, other=0.0).to(tl.float32)[None, :]
        total += _mish(part + tl.load(norm_bias_ptr + n, mask=wide, other=0.0).to(tl.float32)[None, :])
    tl.store(out_ptr + r[:, None] * out_stride + n[None, :], total.to(out_ptr.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["frames", "utterances", "next_start", "state_stride"])
def _conv_kernel(
    x_ptr, norm_ptr, norm_bias_ptr, time_ptr, weight_ptr, bias_ptr, state_ptr, next_state_ptr, out_ptr,
    frames, outputs, utterances, x_stride, out_stride, state_stride, next_start,
    C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BEFORE: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Causal convolution of three taps.

    state (utterances, C, 2) holds the two frames before the first; those before frame `next_start` are saved
    as next_state. Conditional rows are the first half of the batch, and come first in an utterance's state.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    batch = tl.program_id(0)
    t = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(2) * BN + tl.arange(0, BN)
    wide = n < outputs
    kind = x_ptr.dtype.element_ty
    base = (batch % utterances).to(tl.int64) * state_stride + (batch // utterances) * (2 * C)
    total = tl.zeros([BM, BN], tl.float32)
    for tap in tl.static_range(3):
        at = t + tap - 2
        own = ((at >= 0) & (at < frames))[:, None]
        before = (at < 0)[:, None]
        for first in range(0, C, BK):
            k = first + tl.arange(0, BK)
            w_ptr = weight_ptr + (tap * outputs + n[None, :]) * C + k[:, None]
            w = tl.load(w_ptr, mask=wide[None, :], other=0.0)
            x = tl.load(x_ptr + (batch * frames + at[:, None]) * x_stride + k[None, :], mask=own, other=0.0)
            if BEFORE == 2:
                y = _mish(_layer_norm(x.to(tl.float32), k, norm_ptr, norm_bias_ptr, C))
                x = (y + tl.load(time_ptr + k).to(tl.float32)[None, :]).to(kind)
            if tl.program_id(1) == 0:
                place = base + k[None, :] * 2 + at[:, None] + 2
                past = tl.load(state_ptr + place, mask=before, other=0.0).to(kind)
                x = tl.where(before, past, x)
            if tap == 2:
                # Everything is masked but two frames, in one block of outputs.
                saved = ((at >= next_start - 2) & (at < next_start) & (tl.program_id(2) == 0))[:, None]
                place = base + k[None, :] * 2 + (at[:, None] - next_start + 2)
                tl.store(next_state_ptr + place, x.to(tl.float32), mask=saved)
            total = tl.dot(x, w, total, input_precision=PRECISION)
    total += tl.load(bias_ptr + n, mask=wide, other=0.0).to(tl.float32)[None, :]
    here = (t < frames)[:, None] & wide[None, :]
    place = (batch * frames + t[:, None]) * out_stride + n[None, :]
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=here)


@triton.jit
def _attend_block(
    q, scale, keys_ptr, values_ptr, key, stride, seen, maximum, weight, total, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend to one block of keys and values: those `seen` of the rows `key`, which are `stride` apart."""
    at = tl.arange(0, WIDTH)
    k = tl.load(keys_ptr + key[None, :] * stride + at[:, None], mask=seen[None, :], other=0.0)
    v = tl.load(values_ptr + key[:, None] * stride + at[None, :], mask=seen[:, None], other=0.0)
    score = tl.where(seen[None, :], tl.dot(q, k, input_precision=PRECISION) * scale, float("-inf"))
    higher = tl.maximum(maximum, tl.max(score, axis=1))
    share = tl.exp2(score - higher[:, None])
    shrink = tl.exp2(maximum - higher)
    weight = weight * shrink + tl.sum(share, axis=1)
    total = tl.dot(share.to(v.dtype), v, total * shrink[:, None], input_precision=PRECISION)
    return higher, weight, total


@triton.jit(do_not_specialize=["frames", "cached", "utterances"])
def _attend_kernel(
    qkv_ptr, keys_ptr, values_ptr, lengths_ptr, padding_ptr, out_ptr,
    frames, cached, utterances, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, FRAMES: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attend from the frames of one head to the block's own, up to its length, then to the prompt's.

    keys, values: (1 or 2, HEADS, cached, WIDTH), the same for all utterances, of which the first `padding`
    are masked; lengths, padding: in tokens of FRAMES frames.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    batch, head = tl.program_id(0), tl.program_id(1)
    t = tl.program_id(2) * BQ + tl.arange(0, BQ)
    at = tl.arange(0, WIDTH)
    stride = 3 * HEADS * WIDTH
    own_ptr = qkv_ptr + batch * frames * stride + head * WIDTH
    real = (t < frames)[:, None]
    q = tl.load(own_ptr + t[:, None] * stride + at[None, :], mask=real, other=0.0)
    length = tl.minimum(tl.load(lengths_ptr + batch % utterances).to(tl.int32) * FRAMES, frames)
    padding = tl.load(padding_ptr).to(tl.int32) * FRAMES
    maximum = tl.zeros([BQ], tl.float32) - float("inf")
    weight = tl.zeros([BQ], tl.float32)
    total = tl.zeros([BQ, WIDTH], tl.float32)
    for start in range(0, length, BK):  # the first key is always seen, so the maximum is finite from here on
        key = start + tl.arange(0, BK)
        maximum, weight, total = _attend_block(
            q, scale, own_ptr + HEADS * WIDTH, own_ptr + 2 * HEADS * WIDTH, key, stride, key < length,
            maximum, weight, total, WIDTH, PRECISION,
        )  # fmt: skip
    half = ((batch // utterances) * HEADS + head) * cached * WIDTH
    for start in range(padding // BK * BK, cached, BK):
        key = start + tl.arange(0, BK)
        maximum, weight, total = _attend_block(
            q, scale, keys_ptr + half, values_ptr + half, key, WIDTH, (key >= padding) & (key < cached),
            maximum, weight, total, WIDTH, PRECISION,
        )  # fmt: skip
    place = (batch * frames + t[:, None]) * (HEADS * WIDTH) + head * WIDTH + at[None, :]
    tl.store(out_ptr + place, (total / weight[:, None]).to(out_ptr.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["count"])
def _euler_kernel(
    x_ptr, velocity_ptr, width_ptr, input_ptr,
    count, input_stride, guidance,
    BANDS: tl.constexpr, GUIDED: tl.constexpr, MOVE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Move x, of `count` values, by one step; write it to the estimator's input, in both halves if guided."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = i < count
    x = tl.load(x_ptr + i, mask=real, other=0.0)
    if MOVE:
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
