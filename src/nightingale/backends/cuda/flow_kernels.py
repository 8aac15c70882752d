"""The flow estimator's layers in a few kernels each, written in Triton.

Why it helps here. A piece of a stream is some fifty to three hundred rows of 256 channels: nothing in it is
large, and by library calls a pass is over a thousand kernels, ten times. Here rows stay rows (batch, frames,
channels), so nothing is transposed, and each norm, activation, bias and sum is part of the product beside it:

    a resnet       conv  |  norm · mish · time · conv  |  1×1 of the input + norm · mish
    a transformer  norm · qkv  |  attend  |  out + x  |  norm · up · gelu  |  down + x

What a layer carries from one piece to the next is read and left by the convolution's own kernel. Products are
added up in float32 and nothing is rounded between a norm and its product, so this is nearer to float32 than
the library's bfloat16. EARLY: each kernel may be launched while the one before it ends, as kernels.py says
and for the same reasons; before its `gdc_wait` it reads weights at most. The twin is `FlowSteps.solve`.
"""

# What Triton compiles may not be annotated with what it does not know.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from triton.language.extra.cuda import (  # type: ignore[import-not-found, unused-ignore]
    gdc_launch_dependents,
    gdc_wait,
)

NONE, NORM, NORM_MISH = 0, 1, 2
"""What is done to the rows before a product."""
PLAIN, GELU, ADD, ADD_NORM_MISH = 0, 1, 2, 3
"""What is done after it: nothing, an activation, a sum with another, a sum with another's norm and mish."""


@triton.jit
def _mish(x):
    e = tl.exp(tl.minimum(x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


@triton.jit
def _normed(x, channel, weight_ptr, bias_ptr, C: tl.constexpr):
    """Rows (M, C), each with a mean of nothing and a spread of one; float32."""
    mean = tl.sum(x, axis=1) / C
    x = x - mean[:, None]
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / C + 1e-5)
    weight = tl.load(weight_ptr + channel).to(tl.float32)
    return x * scale[:, None] * weight[None, :] + tl.load(bias_ptr + channel).to(tl.float32)[None, :]


@triton.jit(do_not_specialize=["rows"])
def _rows_kernel(
    x_ptr,
    norm_ptr,
    norm_bias_ptr,
    weight_ptr,
    bias_ptr,
    other_ptr,
    out_ptr,
    rows,
    outputs,
    x_stride,
    other_stride,
    out_stride,
    K: tl.constexpr,
    C: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BEFORE: tl.constexpr,
    AFTER: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out[r, n] = before(x[r]) · weight[n] + bias[n], and what comes after. K: of x; C: of `other`'s norm."""
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    real, wide = (r < rows)[:, None], n < outputs
    kind = x_ptr.dtype.element_ty
    if EARLY:
        gdc_launch_dependents()
    if BEFORE == 0:
        if EARLY:
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
        if EARLY:
            gdc_wait()
        x = tl.load(x_ptr + r[:, None] * x_stride + k[None, :], mask=real, other=0.0).to(tl.float32)
        x = _normed(x, k, norm_ptr, norm_bias_ptr, K)
        if BEFORE == 2:
            x = _mish(x)
        total = tl.dot(x.to(kind), w, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias_ptr + n, mask=wide, other=0.0).to(tl.float32)[None, :]
    here = real & wide[None, :]
    if AFTER == 1:
        total = total * 0.5 * (1.0 + tl.erf(total * 0.7071067811865476))
    if AFTER == 2:
        total += tl.load(other_ptr + r[:, None] * other_stride + n[None, :], mask=here, other=0.0).to(
            tl.float32
        )
    if AFTER == 3:
        c = tl.arange(0, C)
        whole = tl.load(other_ptr + r[:, None] * other_stride + c[None, :], mask=real, other=0.0).to(
            tl.float32
        )
        mean = tl.sum(whole, axis=1) / C
        whole = whole - mean[:, None]
        scale = 1.0 / tl.sqrt(tl.sum(whole * whole, axis=1) / C + 1e-5)
        part = tl.load(other_ptr + r[:, None] * other_stride + n[None, :], mask=here, other=0.0).to(
            tl.float32
        )
        part = (part - mean[:, None]) * scale[:, None]
        part = part * tl.load(norm_ptr + n, mask=wide, other=0.0).to(tl.float32)[None, :]
        total += _mish(part + tl.load(norm_bias_ptr + n, mask=wide, other=0.0).to(tl.float32)[None, :])
    tl.store(out_ptr + r[:, None] * out_stride + n[None, :], total.to(out_ptr.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["frames", "utterances", "start", "carried_stride"])
def _conv_kernel(
    x_ptr,
    norm_ptr,
    norm_bias_ptr,
    time_ptr,
    weight_ptr,
    bias_ptr,
    carried_ptr,
    left_ptr,
    out_ptr,
    frames,
    outputs,
    utterances,
    x_stride,
    out_stride,
    carried_stride,
    start,
    C: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BEFORE: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A causal convolution of three taps over (batch, frames, C): weight (3, outputs, C).

    The two frames before the first are carried (utterances, C, 2), those before frame `start` are left the
    same way; guided rows are the first half of the batch, and lie first in what an utterance carries.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    batch = tl.program_id(0)
    t = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(2) * BN + tl.arange(0, BN)
    wide = n < outputs
    kind = x_ptr.dtype.element_ty
    mine = (batch % utterances).to(tl.int64) * carried_stride + (batch // utterances) * (2 * C)
    total = tl.zeros([BM, BN], tl.float32)
    for tap in tl.static_range(3):
        at = t + tap - 2
        own = ((at >= 0) & (at < frames))[:, None]
        before = (at < 0)[:, None]
        for first in range(0, C, BK):
            k = first + tl.arange(0, BK)
            w = tl.load(
                weight_ptr + (tap * outputs + n[None, :]) * C + k[:, None], mask=wide[None, :], other=0.0
            )
            x = tl.load(x_ptr + (batch * frames + at[:, None]) * x_stride + k[None, :], mask=own, other=0.0)
            if BEFORE == 2:
                y = _mish(_normed(x.to(tl.float32), k, norm_ptr, norm_bias_ptr, C))
                x = (y + tl.load(time_ptr + k).to(tl.float32)[None, :]).to(kind)
            if tl.program_id(1) == 0:
                place = mine + k[None, :] * 2 + at[:, None] + 2
                past = tl.load(carried_ptr + place, mask=before, other=0.0).to(kind)
                x = tl.where(before, past, x)
            if tap == 2:
                # All of it is masked out but two frames, of one block of outputs.
                leaving = ((at >= start - 2) & (at < start) & (tl.program_id(2) == 0))[:, None]
                place = mine + k[None, :] * 2 + (at[:, None] - start + 2)
                tl.store(left_ptr + place, x.to(tl.float32), mask=leaving)
            total = tl.dot(x, w, total, input_precision=PRECISION)
    total += tl.load(bias_ptr + n, mask=wide, other=0.0).to(tl.float32)[None, :]
    here = (t < frames)[:, None] & wide[None, :]
    place = (batch * frames + t[:, None]) * out_stride + n[None, :]
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=here)


@triton.jit
def _attended(
    q,
    scale,
    keys_ptr,
    values_ptr,
    key,
    stride,
    seen,
    most,
    weight,
    total,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One block of keys and values: those `seen` of the rows `key`, `stride` apart."""
    at = tl.arange(0, WIDTH)
    k = tl.load(keys_ptr + key[None, :] * stride + at[:, None], mask=seen[None, :], other=0.0)
    v = tl.load(values_ptr + key[:, None] * stride + at[None, :], mask=seen[:, None], other=0.0)
    score = tl.where(seen[None, :], tl.dot(q, k, input_precision=PRECISION) * scale, float("-inf"))
    higher = tl.maximum(most, tl.max(score, axis=1))
    share = tl.exp2(score - higher[:, None])
    shrink = tl.exp2(most - higher)
    weight = weight * shrink + tl.sum(share, axis=1)
    total = tl.dot(share.to(v.dtype), v, total * shrink[:, None], input_precision=PRECISION)
    return higher, weight, total


@triton.jit(do_not_specialize=["frames", "known", "utterances"])
def _attend_kernel(
    qkv_ptr,
    keys_ptr,
    values_ptr,
    lengths_ptr,
    unheard_ptr,
    out_ptr,
    frames,
    known,
    utterances,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BQ: tl.constexpr,
    BK: tl.constexpr,
    FRAMES: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Frames of one head: they see the piece's own, up to its length, then the prompt's, from `unheard` on.

    qkv: (batch, frames, 3, HEADS, WIDTH); keys, values: (1 or 2, HEADS, known, WIDTH), the same for all
    utterances; lengths, unheard: in tokens, of FRAMES frames each.
    """
    if EARLY:
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
    unheard = tl.load(unheard_ptr).to(tl.int32) * FRAMES
    most = tl.zeros([BQ], tl.float32) - float("inf")
    weight = tl.zeros([BQ], tl.float32)
    total = tl.zeros([BQ, WIDTH], tl.float32)
    for start in range(0, length, BK):  # its first is always seen, so the maximum is a number from here on
        key = start + tl.arange(0, BK)
        most, weight, total = _attended(
            q,
            scale,
            own_ptr + HEADS * WIDTH,
            own_ptr + 2 * HEADS * WIDTH,
            key,
            stride,
            key < length,
            most,
            weight,
            total,
            WIDTH,
            PRECISION,
        )
    half = ((batch // utterances) * HEADS + head) * known * WIDTH
    for start in range(unheard // BK * BK, known, BK):
        key = start + tl.arange(0, BK)
        most, weight, total = _attended(
            q,
            scale,
            keys_ptr + half,
            values_ptr + half,
            key,
            WIDTH,
            (key >= unheard) & (key < known),
            most,
            weight,
            total,
            WIDTH,
            PRECISION,
        )
    place = (batch * frames + t[:, None]) * (HEADS * WIDTH) + head * WIDTH + at[None, :]
    tl.store(out_ptr + place, (total / weight[:, None]).to(out_ptr.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["count"])
def _euler_kernel(
    x_ptr,
    velocity_ptr,
    width_ptr,
    shown_ptr,
    count,
    shown_stride,
    guidance,
    BANDS: tl.constexpr,
    GUIDED: tl.constexpr,
    MOVE: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """x moved by one step, and shown to the network in both halves of its batch. count: of x's numbers."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = i < count
    x = tl.load(x_ptr + i, mask=real, other=0.0)
    if MOVE:
        velocity = tl.load(velocity_ptr + i, mask=real, other=0.0)
        if GUIDED:
            free = tl.load(velocity_ptr + count + i, mask=real, other=0.0)
            velocity = (1.0 + guidance) * velocity - guidance * free
        x = x + tl.load(width_ptr) * velocity
        tl.store(x_ptr + i, x, mask=real)
    place = shown_ptr + (i // BANDS) * shown_stride + i % BANDS
    tl.store(place, x.to(shown_ptr.dtype.element_ty), mask=real)
    if GUIDED:
        tl.store(place + count // BANDS * shown_stride, x.to(shown_ptr.dtype.element_ty), mask=real)
