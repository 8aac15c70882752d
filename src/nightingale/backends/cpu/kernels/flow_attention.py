"""Attention of the flow: every query attends to every key, with int8 logits and float32 values.

Shapes and layout (blocks = ceil(keys / 16); head_dim = 64)
    q, k, v        (heads, rows, 64) float32, with strides of heads and rows
    k_codes        (heads, blocks, 64 / 4, 16, 4) int8   four channels of 16 keys side by side
    k_scales       (heads, blocks, 16) float32           one scale per key
    packed_values  (heads, 4, blocks, 16, 16) float32    16 channels of 16 values side by side
    out            (queries, heads, 64) float32

Pseudo-code: two operations, with a barrier between them
    pack_keys:  k_codes, k_scales = quantize(k);  packed_values = copy(v)      # by blocks of 16 keys
    attention:  for each tile of 16 queries of a head:
                    q_codes, q_scales = quantize(q[tile])
                    for block in blocks, four queries at a time:               # as in int8_gemm.py, keys as weights
                        logits[query, block] = dot(q_codes, k_codes[block]) · q_scale · k_scales[block] / 8
                    weights = softmax(logits)
                    out[query, channels] = Σ_key weights[query, key] · packed_values[channels, key]

Why it is fast: 16 keys in the lanes give 16 logits without a sum across lanes; a tile of queries goes through
all keys, and then through all values of 16 channels, while they are in the cache.
"""

from __future__ import annotations

import math
from typing import Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.int8_gemm import emit_dot_16, emit_quantization
from nightingale.backends.cpu.kernels.llvm_builder import (
    F32,
    I8,
    I32,
    I64,
    Function,
    Pointer,
    Value,
    vector_of,
)
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, Target
from nightingale.backends.cpu.kernels.thread_pool import OpArg, Operation
from nightingale.backends.cpu.kernels.vector_math import LANES, emit_softmax_numerators
from nightingale.backends.shared.quantize import ZERO_POINT

HEAD_DIM: Final = 64
PARTS: Final = HEAD_DIM // LANES
QUERIES_AT_ONCE: Final = 4
"""Queries for whose sums there are registers."""
QUERY_TILE: Final = 16
"""Queries that a thread takes through all keys."""


class FlowAttentionOp(OpArg):
    """Arguments of both operations. Strides count floats."""

    Q = F32
    Q_HEAD_STRIDE = I64
    Q_ROW_STRIDE = I64
    K = F32
    K_HEAD_STRIDE = I64
    K_ROW_STRIDE = I64
    V = F32
    V_HEAD_STRIDE = I64
    V_ROW_STRIDE = I64
    OUT = F32
    K_CODES = I8
    K_SCALES = F32
    PACKED_VALUES = F32
    QUERIES = I64
    """At least QUERY_TILE."""
    KEYS = I64
    HEADS = I64
    SCRATCH = I64
    SCRATCH_BYTES = I64
    """Of one thread."""


Op = FlowAttentionOp


def packed_bytes(keys: int, heads: int) -> tuple[int, int, int]:
    """Return the bytes of K_CODES, K_SCALES and PACKED_VALUES."""
    padded = heads * -(-keys // LANES) * LANES
    return padded * HEAD_DIM, 4 * padded, 4 * padded * HEAD_DIM


def scratch_bytes(keys: int) -> int:
    """Return the bytes that a thread needs for logits, and for quantized queries."""
    return QUERY_TILE * (4 * -(-keys // LANES) * LANES + HEAD_DIM + 8)


def emit_pack_keys(module: ir.Module, target: Target) -> Operation:
    f = Operation(module, "pack_keys")
    keys, values, packed, scales = (
        f.arg_pointer(name) for name in (Op.K, Op.V, Op.PACKED_VALUES, Op.K_SCALES)
    )
    codes, count = f.arg_pointer(Op.K_CODES).cast(I32), f.arg(Op.KEYS)
    blocks = _blocks(count)
    begin, end = f.thread_range(blocks * f.arg(Op.HEADS))
    with f.loop(end, start=begin) as unit:
        head, block = unit // blocks, unit % blocks
        block_codes = codes.offset(unit * (HEAD_DIM // DOT_INPUTS * LANES))
        with f.loop(LANES) as lane:
            # The last key fills up the last block; its logits there are masked by their position.
            number = (block * LANES + lane).min(count - 1)
            key = keys.offset(head * f.arg(Op.K_HEAD_STRIDE) + number * f.arg(Op.K_ROW_STRIDE))
            parts = [key.load_vector(part * LANES, LANES) for part in range(PARTS)]
            scales[unit * LANES + lane] = _emit_pack_key(target, parts, block_codes.offset(lane))
            value = values.offset(head * f.arg(Op.V_HEAD_STRIDE) + number * f.arg(Op.V_ROW_STRIDE))
            for part in range(PARTS):
                row = ((head * PARTS + part) * blocks + block) * LANES + lane
                packed[row * LANES] = value.load_vector(part * LANES, LANES)
    f.ret()
    return f


def _emit_pack_key(target: Target, parts: list[Value], out: Pointer) -> Value:
    """Write the codes of a key into its lane of a block, and return its scale."""
    scale, codes = emit_quantization(parts)
    for number, code in enumerate(codes):
        unsigned = code if target.signed_weights else code + ZERO_POINT
        fours = unsigned.cast(I8).bitcast(vector_of(I32, LANES // DOT_INPUTS))
        for four in range(LANES // DOT_INPUTS):
            out[(number * (LANES // DOT_INPUTS) + four) * LANES] = fours.extract(four)
    return scale


def emit_flow_attention(module: ir.Module, target: Target, quantize_row: Function) -> Operation:
    """Emit attention over packed keys; `quantize_row` quantizes by blocks of HEAD_DIM."""
    f = Operation(module, "flow_attention")
    packed, out = f.arg_pointer(Op.PACKED_VALUES), f.arg_pointer(Op.OUT)
    count, heads, queries = f.arg(Op.KEYS), f.arg(Op.HEADS), f.arg(Op.QUERIES)
    blocks, tiles = _blocks(count), (queries + (QUERY_TILE - 1)) // QUERY_TILE
    width = blocks * LANES
    logits = f.pointer_at(f.arg(Op.SCRATCH) + f.arg(Op.SCRATCH_BYTES) * f["thread"], F32)
    q_scales = logits.offset(width * QUERY_TILE)
    corrections = q_scales.offset(QUERY_TILE).cast(I32)
    q_codes = corrections.offset(QUERY_TILE).cast(I8)
    begin, end = f.thread_range(tiles * heads)
    with f.loop(end, start=begin) as unit:
        # The last tile of a head begins earlier, and computes some queries again.
        head, first = unit // tiles, (unit % tiles * QUERY_TILE).min(queries - QUERY_TILE)
        source = f.arg_pointer(Op.Q).offset(head * f.arg(Op.Q_HEAD_STRIDE) + first * f.arg(Op.Q_ROW_STRIDE))

        def quantized(row: Value) -> tuple[Pointer, Pointer, Pointer]:
            return q_codes.offset(row * HEAD_DIM), q_scales.offset(row), corrections.offset(row)

        with f.loop(QUERY_TILE) as row:
            query = source.offset(row * f.arg(Op.Q_ROW_STRIDE))
            f.call(quantize_row, query, query, query, *quantized(row), f.const(HEAD_DIM))
        with f.loop(blocks) as block, f.loop(QUERY_TILE, step=QUERIES_AT_ONCE) as row:
            _emit_logits(f, target, quantized(row), head * blocks + block, block, logits.offset(row * width))
        with f.loop(QUERY_TILE) as row:
            weights = logits.offset(row * width)
            scale = f.const(1.0, F32) / emit_softmax_numerators(f, weights, blocks)
            with f.loop(width, step=LANES) as at:
                weights[at] = weights.load_vector(at, LANES) * scale
        with f.loop(PARTS) as part, f.loop(QUERY_TILE, step=QUERIES_AT_ONCE) as row:
            totals = [f.variable(f.zeros(F32, LANES)) for _ in range(QUERIES_AT_ONCE)]
            values = packed.offset((head * PARTS + part) * width * LANES)
            with f.loop(count) as key:
                value = values.load_vector(key * LANES, LANES)
                for number, total in enumerate(totals):
                    total.value = value.fma(logits[(row + number) * width + key], total.value)
            for number, total in enumerate(totals):
                out[((first + row + number) * heads + head) * HEAD_DIM + part * LANES] = total.value
    f.ret()
    return f


def _emit_logits(
    f: Operation,
    target: Target,
    queries: tuple[Pointer, Pointer, Pointer],
    unit: Value,
    block: Value,
    logits: Pointer,
) -> None:
    """Write the logits of QUERIES_AT_ONCE queries for a block of keys, which is `unit` of all heads."""
    q_codes, q_scales, corrections = queries
    parts = range(LANES // target.lanes)
    k_codes = f.arg_pointer(Op.K_CODES).offset(unit * (HEAD_DIM * LANES))
    places = [(number, 0, part) for number in range(QUERIES_AT_ONCE) for part in parts]
    sums = {place: f.variable(f.zeros(I32, target.lanes)) for place in places}
    with f.loop(HEAD_DIM, step=4 * DOT_INPUTS) as first:
        rows = [q_codes.offset(number * HEAD_DIM) for number in range(QUERIES_AT_ONCE)]
        emit_dot_16(f, target, first, [k_codes], rows, sums)
    count = f.arg(Op.KEYS)
    width = _blocks(count) * LANES
    k_scales = f.arg_pointer(Op.K_SCALES).offset(unit * LANES)
    for number, _, part in places:
        exact = sums[number, 0, part].value
        if not target.signed_weights:
            exact = exact + corrections[number]
        at = block * LANES + part * target.lanes
        scale = k_scales.load_vector(part * target.lanes, target.lanes) * (q_scales[number] * HEAD_DIM**-0.5)
        is_key = (f.iota(target.lanes) + at) < count
        logits[width * number + at] = is_key.select(exact.cast(F32) * scale, -math.inf)


def _blocks(keys: Value) -> Value:
    return (keys + (LANES - 1)) // LANES
