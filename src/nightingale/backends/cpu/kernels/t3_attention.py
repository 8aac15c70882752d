"""Causal attention of one T3 head over its KV cache, for one new token or for many.

Shapes and layout (one head of one sequence; `past` positions are in the cache already)
    qkv       (tokens, 3, heads, head_dim) float32   the output of the qkv projection
    keys      (capacity / 16, head_dim, 16) float16  blocks of 16 positions, side by side in the lanes
    values    (capacity, head_dim) float16
    cos, sin  (positions, head_dim) float32          rotary tables; not read if T3 has learned positions
    out       (tokens, heads, head_dim) float32
    logits    (capacity rounded up to 16) float32    scratch of the thread

Pseudo-code
    for token in tokens:                                     # append to the cache
        keys[past + token] = rotate(k[token]);  values[past + token] = v[token]
    for token in tokens:
        n = past + token + 1
        q = rotate(q[token]) / sqrt(head_dim)
        for block in ceil(n / 16):                           # 16 positions at a time
            logits[block] = Σ_d q[d] · keys[block, d, :]     # -inf at positions from n on
        out[token] = Σ_p softmax(logits)[p] · values[p]

Why it is fast: a step is bound by reading the cache, which float16 halves. The layout of the keys gives
sixteen logits without a sum across lanes, and four independent sums hide the latency of the multiply-add.
"""

from __future__ import annotations

import math

from llvmlite import ir

from nightingale.backends.cpu.kernels.llvm_builder import F16, F32, I64, Function, Value
from nightingale.backends.cpu.kernels.vector_math import LANES, emit_softmax_numerators


def emit_attention(module: ir.Module, *, head_dim: int, rotary: bool) -> Function:
    """Emit attention: append the new keys and values of a head to its cache, then attend.

    `width` is heads × head_dim; `qkv` and `out` point to the first token's numbers of this head.
    """
    arrays = {"qkv": F32, "keys": F16, "values": F16, "cos": F32, "sin": F32, "out": F32, "logits": F32}
    f = Function(module, "attention", {**arrays, "tokens": I64, "past": I64, "width": I64})
    qkv, keys, values, cosines, sines, out, logits, tokens, past, width = f.params
    parts = range(0, head_dim, LANES)

    def rotate(start: Value, position: Value) -> list[Value]:
        x = [qkv.load_vector(start + at, LANES) for at in parts]
        if not rotary:
            return x
        cos, sin = (
            [table.load_vector(position * head_dim + at, LANES) for at in parts] for table in (cosines, sines)
        )
        half = len(x) // 2
        swapped = [-part for part in x[half:]] + x[:half]
        return [(a * c) + (b * s) for a, b, c, s in zip(x, swapped, cos, sin, strict=True)]

    with f.loop(tokens) as token:
        position, start = past + token, token * width * 3
        key = keys.offset(position // LANES * (head_dim * LANES) + position % LANES)
        for number, part in enumerate(rotate(start + width, position)):
            small = part.cast(F16)
            for lane in range(LANES):
                key[(number * LANES + lane) * LANES] = small.extract(lane)
        for at in parts:
            part = qkv.load_vector(start + width * 2 + at, LANES)
            values[position * head_dim + at] = part.cast(F16)
    query = f.stack_array(F32, head_dim)
    with f.loop(tokens) as token:
        count = past + token + 1
        for at, part in zip(parts, rotate(token * width * 3, count - 1), strict=True):
            query[at] = part * head_dim**-0.5
        blocks = (count + (LANES - 1)) // LANES
        with f.loop(blocks) as block:
            dots = [f.zeros(F32, LANES)] * 4
            for d in range(head_dim):
                key = keys.load_vector((block * head_dim + d) * LANES, LANES).cast(F32)
                dots[d % 4] = key.fma(query[d], dots[d % 4])
            logit = (dots[0] + dots[1]) + (dots[2] + dots[3])
            in_cache = (f.iota(LANES) + block * LANES) < count
            logits[block * LANES] = in_cache.select(logit, -math.inf)
        total = emit_softmax_numerators(f, logits, blocks)
        sums = [f.variable(f.zeros(F32, LANES)) for _ in parts]
        with f.loop(count) as position:
            weight = logits[position]
            for at, part_sum in zip(parts, sums, strict=True):
                value = values.load_vector(position * head_dim + at, LANES).cast(F32)
                part_sum.value = value.fma(weight, part_sum.value)
        scale = f.const(1.0, F32) / total
        for at, part_sum in zip(parts, sums, strict=True):
            out[token * width + at] = part_sum.value * scale
    return f.ret()
