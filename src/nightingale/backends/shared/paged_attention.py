"""Attention of one token over a paged KV cache, written in Triton; keys and values may be int8 or fp8.

With 64 guided streams of a few hundred positions, a step of the large T3 reads several times more KV cache
than weights. This kernel reads each cached byte once, in the precision in which it is stored, and only as
many positions as each stream has.

q, k, v: (rows, heads, 1, width), the new token. The pool holds keys and values (positions, width), and scales
(positions, groups) of quantized ones. The positions of a head are contiguous: the prompt, then a ring of the
latest tokens (`KVBlockTables` in models/layers/paged_kv_cache.py).

    for each head of each row, in parallel:
        rotate q and k; quantize k and v, and store them at prompt + generated % ring
        for each block of BLOCK cached positions:
            logits = sum(q * keys) * key scales
            each lane: running maximum, sum of weights, weighted sum of values * value scales
        combine the lanes and the new position; divide

Each lane of a block keeps a softmax of its own, so that the loop has no reduction across lanes. In plain
torch it is `attend_reference` in nightingale_lab/bench/paged_attention_reference.py.
"""

# What Triton compiles may not be annotated with what it does not know.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from nightingale.models.layers.kv_blocks import MAX_QUANTIZED, MIN_SCALE, KVBlockPool

PagedTuning = tuple[int, int]
TUNING: PagedTuning = (64, 4)
"""Positions of a block, and warps. benchmarks/kv_cache_gpu.py times several."""


@triton.jit
def _quantize(x, MAX: tl.constexpr, MIN_SCALE: tl.constexpr, INTEGER: tl.constexpr, kind: tl.constexpr):
    """Return x (groups, values) quantized, its scales (groups,), and x as it will be read back."""
    scale = tl.maximum(tl.max(tl.abs(x), axis=1) / MAX, MIN_SCALE).to(tl.float16)
    wide = scale.to(tl.float32)[:, None]
    quantized = tl.minimum(tl.maximum(x / wide, -MAX), MAX)
    if INTEGER:
        # Round to nearest, ties to even: at 1.5 · 2^23 a float32 has no fraction.
        quantized = (quantized + 12582912.0) - 12582912.0
    stored = quantized.to(kind)
    return stored, scale, stored.to(tl.float32) * wide


@triton.jit
def _rotated(x_ptr, base, at, cos_ptr, sin_ptr, length, WIDTH: tl.constexpr):
    """Load a vector and rotate it by its position; round where the reference rounds."""
    other = (at + WIDTH // 2) % WIDTH
    cos = tl.load(cos_ptr + length * WIDTH + at).to(tl.float32)
    sin = tl.load(sin_ptr + length * WIDTH + at).to(tl.float32) * tl.where(at < WIDTH // 2, -1.0, 1.0)
    x = tl.load(x_ptr + base + at).to(tl.float32) * cos + tl.load(x_ptr + base + other).to(tl.float32) * sin
    return x.to(x_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def _attend_kernel(
    q_ptr, k_ptr, v_ptr, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, starts_ptr, rings_ptr,
    prompts_ptr, lengths_ptr, cos_ptr, sin_ptr, out_ptr,
    row_stride, head_stride, slack, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, KEY_GROUPS: tl.constexpr, VALUE_GROUPS: tl.constexpr,
    BLOCK: tl.constexpr, MAX: tl.constexpr, MIN_SCALE: tl.constexpr, SCALED: tl.constexpr,
    INTEGER: tl.constexpr, ROTATE: tl.constexpr,
):  # fmt: skip
    """Vectors are (groups, values of a group), so that a scale is one value of the first axis."""
    row, head = tl.program_id(0), tl.program_id(1)
    key_group, value_group = tl.arange(0, KEY_GROUPS), tl.arange(0, VALUE_GROUPS)
    k_at = key_group[:, None] * (WIDTH // KEY_GROUPS) + tl.arange(0, WIDTH // KEY_GROUPS)[None, :]
    v_at = value_group[:, None] * (WIDTH // VALUE_GROUPS) + tl.arange(0, WIDTH // VALUE_GROUPS)[None, :]
    kind = keys_ptr.dtype.element_ty
    base = row * row_stride + head * head_stride
    start = tl.load(starts_ptr + row * HEADS + head)
    used = start >= 0
    stored = tl.where(used, WIDTH, 0)  # so many values of each vector: none in an unused row
    start = tl.maximum(start, 0)
    ring = tl.load(rings_ptr + row * HEADS + head)
    prompt = tl.load(prompts_ptr + row)
    length = tl.load(lengths_ptr + row)
    if ROTATE:
        q = _rotated(q_ptr, base, k_at, cos_ptr, sin_ptr, length, WIDTH)
        k = _rotated(k_ptr, base, k_at, cos_ptr, sin_ptr, length, WIDTH)
    else:
        q = tl.load(q_ptr + base + k_at).to(tl.float32)
        k = tl.load(k_ptr + base + k_at).to(tl.float32)
    q = q * scale
    v = tl.load(v_ptr + base + v_at).to(tl.float32)
    generated = length - prompt
    own = start + prompt + generated % ring
    if SCALED:
        k_stored, k_scale, k = _quantize(k, MAX, MIN_SCALE, INTEGER, kind)
        v_stored, v_scale, v = _quantize(v, MAX, MIN_SCALE, INTEGER, kind)
        tl.store(key_scales_ptr + own * KEY_GROUPS + key_group, k_scale, mask=key_group < stored)
        tl.store(value_scales_ptr + own * VALUE_GROUPS + value_group, v_scale, mask=value_group < stored)
    else:
        k_stored, v_stored = k.to(kind), v.to(kind)
        k, v = k_stored.to(tl.float32), v_stored.to(tl.float32)
    tl.store(keys_ptr + own * WIDTH + k_at, k_stored, mask=k_at < stored)
    tl.store(values_ptr + own * WIDTH + v_at, v_stored, mask=v_at < stored)
    # The new position is in registers, and gives every lane's running maximum a start.
    newest = tl.sum(tl.sum(q * k, axis=1), axis=0)
    maximum = tl.zeros([BLOCK], tl.float32) + newest
    weight = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK, VALUE_GROUPS, WIDTH // VALUE_GROUPS], tl.float32)
    count = tl.where(used, tl.minimum(length, prompt + ring), 0)
    for first in range(0, count, BLOCK):
        position = first + tl.arange(0, BLOCK)
        # Steps since the position was stored; the one that is being stored now is not read.
        age = (generated % ring - (position - prompt) + ring) % ring
        valid = (position < count) & ((position < prompt) | ((age > 0) & (age < ring - slack)))
        here, mask = start + position, valid[:, None, None]
        # Both loads are issued before either is used.
        past_k = tl.load(keys_ptr + here[:, None, None] * WIDTH + k_at[None, :, :], mask=mask)
        past_v = tl.load(values_ptr + here[:, None, None] * WIDTH + v_at[None, :, :], mask=mask)
        logit = tl.sum(tl.where(mask, past_k.to(tl.float32), 0.0) * q[None, :, :], axis=2)
        if SCALED:
            scales = key_scales_ptr + here[:, None] * KEY_GROUPS + key_group[None, :]
            logit = logit * tl.load(scales, mask=valid[:, None], other=0.0).to(tl.float32)
        logit = tl.where(valid, tl.sum(logit, axis=1), float("-inf"))
        higher = tl.maximum(maximum, logit)
        shrink = tl.exp2(maximum - higher)
        share = tl.exp2(logit - higher)
        weight = weight * shrink + share
        part = tl.zeros([BLOCK, VALUE_GROUPS], tl.float32) + share[:, None]
        if SCALED:
            scales = value_scales_ptr + here[:, None] * VALUE_GROUPS + value_group[None, :]
            part = part * tl.load(scales, mask=valid[:, None], other=0.0).to(tl.float32)
        past_v = tl.where(mask, past_v.to(tl.float32), 0.0)
        total = total * shrink[:, None, None] + past_v * part[:, :, None]
        maximum = higher
    top = tl.max(maximum, axis=0)
    lane = tl.exp2(maximum - top)
    own_share = tl.exp2(newest - top)
    whole = tl.sum(weight * lane, axis=0) + own_share
    out = (tl.sum(total * lane[:, None, None], axis=0) + v * own_share) / whole
    tl.store(out_ptr + (row * HEADS + head) * WIDTH + v_at, out.to(out_ptr.dtype.element_ty))


def paged_attention(
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
    rotation: tuple[Tensor, Tensor] | None = None,
    tuning: PagedTuning = TUNING,
) -> Tensor:
    """Append the token of each row and attend: q, k, v (rows, heads, 1, width) -> like q.

    The other arguments are as in `KVBlockTables`. rotation: cosines and sines (positions, width) if q and k
    are not rotated yet.
    """
    rows, heads, _, width = q.shape
    if not (q.stride() == k.stride() == v.stride() and q.stride(3) == 1):
        q, k, v = (x.contiguous() for x in (q, k, v))
    assert all(table.is_contiguous() for table in (starts, rings, prompts, lengths))
    kind = block_pool.layout.dtype
    key_groups, value_groups = block_pool.layout.groups
    # In memory (rows, heads · width), as the matrix products around it have it.
    out = torch.empty(rows, 1, heads, width, dtype=q.dtype, device=q.device).transpose(1, 2)
    cos, sin = rotation or (q, q)
    _attend_kernel[(rows, heads)](
        q, k, v, block_pool.keys, block_pool.values, block_pool.key_scales, block_pool.value_scales, starts,
        rings, prompts, lengths, cos, sin, out, q.stride(0), q.stride(1), slack,
        width**-0.5 * math.log2(math.e),
        HEADS=heads, WIDTH=width, KEY_GROUPS=max(1, key_groups), VALUE_GROUPS=max(1, value_groups),
        BLOCK=tuning[0], MAX=MAX_QUANTIZED.get(kind, 0.0), MIN_SCALE=MIN_SCALE, SCALED=kind in MAX_QUANTIZED,
        INTEGER=kind == torch.int8, ROTATE=rotation is not None, num_warps=tuning[1],
    )  # fmt: skip
    return out
