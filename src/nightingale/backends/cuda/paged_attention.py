"""One token's attention over cells, written in Triton: eight bits are read, and nothing is written out.

Why it helps here. With 64 guided streams of a few hundred positions, a step of the large T3 reads several
times more of its own memory than weights. This kernel reads each remembered byte once, in the kind in which
it is remembered, and only what is remembered: not the longest stream's share for everybody.

A program is one head of one row: it rounds and appends the new key and value, then looks at all that its
head keeps. Each lane of a block keeps a softmax of its own, and they are joined at the end, so that nothing
in the loop waits for the other lanes.

The twin is `attend_reference` in nightingale_lab/bench/paged_attention_reference.py: the same arguments, the same cells bit for bit, the same sums up to
their order. On a machine without a GPU the kernel runs in Triton's interpreter (TRITON_INTERPRET=1), which is
how tests/accel/test_kv_cache.py checks it there.
"""

# What Triton compiles may not be annotated with what it does not know.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from nightingale.backends.cuda.t3_kernels import rms_norm, swiglu
from nightingale.backends.cuda.t3_layers import LlamaWeights
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_blocks import MAX_QUANTIZED, MIN_SCALE, KVBlockPool
from nightingale.models.layers.paged_kv_cache import KVBlockTables

Tuning = tuple[int, int]
TUNING: Tuning = (64, 4)
"""Cells at a time, and warps. The machine says what is best: benchmarks/kv_cache.py tries several."""


@triton.jit
def _rounded(x, TOP: tl.constexpr, LEAST: tl.constexpr, INTEGER: tl.constexpr, kind: tl.constexpr):
    """(groups, numbers) as a cell, its scales (groups,), and what they are worth."""
    scale = tl.maximum(tl.max(tl.abs(x), axis=1) / TOP, LEAST).to(tl.float16)
    wide = scale.to(tl.float32)[:, None]
    cell = tl.minimum(tl.maximum(x / wide, -TOP), TOP)
    if INTEGER:
        # To the nearest, a half to the even: beyond 1.5 · 2^23 a float has no room for a fraction.
        cell = (cell + 12582912.0) - 12582912.0
    kept = cell.to(kind)
    return kept, scale, kept.to(tl.float32) * wide


@triton.jit
def _turned(x_ptr, base, at, cos_ptr, sin_ptr, length, WIDTH: tl.constexpr):
    """A vector turned by its position; rounded where the plain twin rounds."""
    other = (at + WIDTH // 2) % WIDTH
    cos = tl.load(cos_ptr + length * WIDTH + at).to(tl.float32)
    sin = tl.load(sin_ptr + length * WIDTH + at).to(tl.float32) * tl.where(at < WIDTH // 2, -1.0, 1.0)
    x = tl.load(x_ptr + base + at).to(tl.float32) * cos + tl.load(x_ptr + base + other).to(tl.float32) * sin
    return x.to(x_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def _attend_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    keys_ptr,
    values_ptr,
    key_scales_ptr,
    value_scales_ptr,
    starts_ptr,
    rings_ptr,
    prompts_ptr,
    lengths_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    row_stride,
    head_stride,
    slack,
    scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    KEY_GROUPS: tl.constexpr,
    VALUE_GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    TOP: tl.constexpr,
    LEAST: tl.constexpr,
    SCALED: tl.constexpr,
    INTEGER: tl.constexpr,
    ROTATE: tl.constexpr,
):
    """Vectors are (groups, numbers of a group), so that a scale is one number of the first axis."""
    row, head = tl.program_id(0), tl.program_id(1)
    key_group, value_group = tl.arange(0, KEY_GROUPS), tl.arange(0, VALUE_GROUPS)
    k_at = key_group[:, None] * (WIDTH // KEY_GROUPS) + tl.arange(0, WIDTH // KEY_GROUPS)[None, :]
    v_at = value_group[:, None] * (WIDTH // VALUE_GROUPS) + tl.arange(0, WIDTH // VALUE_GROUPS)[None, :]
    kind = keys_ptr.dtype.element_ty
    base = row * row_stride + head * head_stride
    start = tl.load(starts_ptr + row * HEADS + head)
    there = start >= 0
    written = tl.where(there, WIDTH, 0)  # of every vector: all of it, or nothing where nobody is
    start = tl.maximum(start, 0)
    ring = tl.load(rings_ptr + row * HEADS + head)
    prompt = tl.load(prompts_ptr + row)
    length = tl.load(lengths_ptr + row)
    if ROTATE:
        q = _turned(q_ptr, base, k_at, cos_ptr, sin_ptr, length, WIDTH)
        k = _turned(k_ptr, base, k_at, cos_ptr, sin_ptr, length, WIDTH)
    else:
        q = tl.load(q_ptr + base + k_at).to(tl.float32)
        k = tl.load(k_ptr + base + k_at).to(tl.float32)
    q = q * scale
    v = tl.load(v_ptr + base + v_at).to(tl.float32)
    spoken = length - prompt
    own = start + prompt + spoken % ring
    if SCALED:
        k_cell, k_scale, k = _rounded(k, TOP, LEAST, INTEGER, kind)
        v_cell, v_scale, v = _rounded(v, TOP, LEAST, INTEGER, kind)
        tl.store(key_scales_ptr + own * KEY_GROUPS + key_group, k_scale, mask=key_group < written)
        tl.store(value_scales_ptr + own * VALUE_GROUPS + value_group, v_scale, mask=value_group < written)
    else:
        k_cell, v_cell = k.to(kind), v.to(kind)
        k, v = k_cell.to(tl.float32), v_cell.to(tl.float32)
    tl.store(keys_ptr + own * WIDTH + k_at, k_cell, mask=k_at < written)
    tl.store(values_ptr + own * WIDTH + v_at, v_cell, mask=v_at < written)
    # The new position needs nothing from memory, and gives every lane's running maximum a start.
    newest = tl.sum(tl.sum(q * k, axis=1), axis=0)
    most = tl.zeros([BLOCK], tl.float32) + newest
    weight = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK, VALUE_GROUPS, WIDTH // VALUE_GROUPS], tl.float32)
    count = tl.where(there, tl.minimum(length, prompt + ring), 0)
    for first in range(0, count, BLOCK):
        cell = first + tl.arange(0, BLOCK)
        # How long ago the cell was written; the one that is being written now is not read.
        age = (spoken % ring - (cell - prompt) + ring) % ring
        seen = (cell < count) & ((cell < prompt) | ((age > 0) & (age < ring - slack)))
        here = start + cell
        # Both are asked for before either is used.
        known = tl.load(keys_ptr + here[:, None, None] * WIDTH + k_at[None, :, :], mask=seen[:, None, None])
        heard = tl.load(values_ptr + here[:, None, None] * WIDTH + v_at[None, :, :], mask=seen[:, None, None])
        score = tl.sum(tl.where(seen[:, None, None], known.to(tl.float32), 0.0) * q[None, :, :], axis=2)
        if SCALED:
            scales = key_scales_ptr + here[:, None] * KEY_GROUPS + key_group[None, :]
            score = score * tl.load(scales, mask=seen[:, None], other=0.0).to(tl.float32)
        score = tl.where(seen, tl.sum(score, axis=1), float("-inf"))
        higher = tl.maximum(most, score)
        shrink = tl.exp2(most - higher)
        share = tl.exp2(score - higher)
        weight = weight * shrink + share
        part = tl.zeros([BLOCK, VALUE_GROUPS], tl.float32) + share[:, None]
        if SCALED:
            scales = value_scales_ptr + here[:, None] * VALUE_GROUPS + value_group[None, :]
            part = part * tl.load(scales, mask=seen[:, None], other=0.0).to(tl.float32)
        heard = tl.where(seen[:, None, None], heard.to(tl.float32), 0.0)
        total = total * shrink[:, None, None] + heard * part[:, :, None]
        most = higher
    top = tl.max(most, axis=0)
    lane = tl.exp2(most - top)
    own_share = tl.exp2(newest - top)
    whole = tl.sum(weight * lane, axis=0) + own_share
    out = (tl.sum(total * lane[:, None, None], axis=0) + v * own_share) / whole
    tl.store(out_ptr + (row * HEADS + head) * WIDTH + v_at, out.to(out_ptr.dtype.element_ty))


def attend_cells(
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
    turn: tuple[Tensor, Tensor] | None = None,
    tuning: Tuning = TUNING,
) -> Tensor:
    """q, k, v: (rows, heads, 1, width); the rest as in `KVBlockTables`. Appends, and attends.

    turn: cosines and sines of every position there may be, (positions, width) each, if q and k have not been
    turned yet.
    """
    rows, heads, _, width = q.shape
    if not (q.stride() == k.stride() == v.stride() and q.stride(3) == 1):
        q, k, v = (x.contiguous() for x in (q, k, v))
    for table in (starts, rings, prompts, lengths):
        assert table.is_contiguous(), "the kernel counts on it"
    kind = block_pool.layout.dtype
    key_groups, value_groups = block_pool.layout.groups
    # As the products around it have it: (rows, heads · width), seen by head.
    out = torch.empty(rows, 1, heads, width, dtype=q.dtype, device=q.device).transpose(1, 2)
    cos, sin = turn or (q, q)
    _attend_kernel[(rows, heads)](
        q,
        k,
        v,
        block_pool.keys,
        block_pool.values,
        block_pool.key_scales,
        block_pool.value_scales,
        starts,
        rings,
        prompts,
        lengths,
        cos,
        sin,
        out,
        q.stride(0),
        q.stride(1),
        slack,
        width**-0.5 * math.log2(math.e),
        HEADS=heads,
        WIDTH=width,
        KEY_GROUPS=max(1, key_groups),
        VALUE_GROUPS=max(1, value_groups),
        BLOCK=tuning[0],
        TOP=MAX_QUANTIZED.get(kind, 0.0),
        LEAST=MIN_SCALE,
        SCALED=kind in MAX_QUANTIZED,
        INTEGER=kind == torch.int8,
        ROTATE=turn is not None,
        num_warps=tuning[1],
    )
    return out


class CellSteps:
    """A Llama's step for many rows with its memory in cells: what `FusedSteps` (fused.py) is without.

    Every place and length is read from tensors, so one recorded graph serves streams of all lengths.
    """

    def __init__(
        self,
        t3: T3,
        layers: Sequence[LlamaWeights],
        turn: tuple[Tensor, Tensor],
        tuning: Tuning = TUNING,
    ) -> None:
        """turn: cosines and sines (positions, head width) of every position there is."""
        self._layers, self._heads = layers, t3.config.backbone.heads
        self._told = {"turn": turn, "tuning": tuning}
        norm = t3.tfmr.get_submodule("norm").weight
        assert isinstance(norm, Tensor)
        self._norm, self._head = norm, t3.speech_head.weight

    def __call__(self, x: Tensor, tables: Sequence[KVBlockTables]) -> Tensor:
        """Logits (rows, vocab), in float32, after x (rows, width), which stands at the tables' lengths."""
        for w, table in zip(self._layers, tables, strict=True):
            qkv = F.linear(rms_norm(x, w.norm_1), w.qkv)
            q, k, v = qkv.view(len(x), 3, self._heads, 1, -1).unbind(1)
            heard = table.attend(q, k, v, **self._told)
            x = torch.addmm(x, heard.flatten(1), w.out.t())
            inner = swiglu(F.linear(rms_norm(x, w.norm_2), w.gate_up))
            x = torch.addmm(x, inner, w.down.t())
        return F.linear(rms_norm(x, self._norm), self._head).float()
