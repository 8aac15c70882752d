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
                    for block in blocks, four queries at a time:               # a GEMM with keys as weights
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
from nightingale.backends.cpu.kernels.llvm_builder import F32, I8, I32, I64, Function, Pointer, Value
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, Target
from nightingale.backends.cpu.kernels.thread_pool import Arg, Operation
from nightingale.backends.cpu.kernels.vector_math import LANES, emit_softmax_numerators
from nightingale.backends.shared.int8_blocks import ZERO_POINT

HEAD_DIM: Final = 64
PARTS: Final = HEAD_DIM // LANES
QUERIES_AT_ONCE: Final = 4
"""Queries for whose sums there are registers."""
QUERY_TILE: Final = 16
"""Queries that a thread takes through all keys."""


class FlowAttentionOp(Arg):
    """Arguments of both operations. Strides count floats."""

    Q = K = V = OUT = K_SCALES = PACKED_VALUES = F32
    K_CODES = I8
    Q_HEAD_STRIDE = Q_ROW_STRIDE = K_HEAD_STRIDE = K_ROW_STRIDE = V_HEAD_STRIDE = V_ROW_STRIDE = I64
    KEYS = HEADS = I64
    QUERIES = I64
    """At least QUERY_TILE."""


def packed_bytes(keys: int, heads: int) -> tuple[int, int, int]:
    """Return the bytes of K_CODES, K_SCALES and PACKED_VALUES."""
    padded = heads * -(-keys // LANES) * LANES
    return padded * HEAD_DIM, 4 * padded, 4 * padded * HEAD_DIM


def scratch_bytes(keys: int) -> int:
    """Return the bytes that a thread needs for logits, and for quantized queries."""
    return QUERY_TILE * (4 * -(-keys // LANES) * LANES + HEAD_DIM + 8)


def emit_pack_keys(module: ir.Module, target: Target) -> Operation:
    f = Operation(module, "pack_keys")
    op = f.args(FlowAttentionOp)
    blocks = (op.keys + (LANES - 1)) // LANES
    begin, end = f.thread_range(blocks * op.heads)
    with f.loop(end, start=begin) as unit, f.loop(LANES) as lane:
        head, block = unit // blocks, unit % blocks
        # The last key fills up the last block; its logits there are masked by their position.
        number = (block * LANES + lane).min(op.keys - 1)
        key = op.k.offset(head * op.k_head_stride + number * op.k_row_stride)
        scale, key_codes = emit_quantization([key.load_vector(part * LANES, LANES) for part in range(PARTS)])
        op.k_scales[unit * LANES + lane] = scale
        out = op.k_codes.cast(I32).offset(unit * (HEAD_DIM // DOT_INPUTS * LANES) + lane)
        for part, code in enumerate(key_codes):
            stored = code if target.signed_weights else code + ZERO_POINT
            fours = stored.cast(I8).bitcast(ir.VectorType(I32, LANES // DOT_INPUTS))
            for four in range(LANES // DOT_INPUTS):
                out[(part * (LANES // DOT_INPUTS) + four) * LANES] = fours.extract(four)
        value = op.v.offset(head * op.v_head_stride + number * op.v_row_stride)
        for part in range(PARTS):
            row = ((head * PARTS + part) * blocks + block) * LANES + lane
            op.packed_values[row * LANES] = value.load_vector(part * LANES, LANES)
    return f.ret()


def emit_flow_attention(module: ir.Module, target: Target, quantize_row: Function) -> Operation:
    """Emit attention over packed keys; `quantize_row` quantizes by blocks of HEAD_DIM."""
    f = Operation(module, "flow_attention")
    op = f.args(FlowAttentionOp)
    blocks = (op.keys + (LANES - 1)) // LANES
    tiles = (op.queries + (QUERY_TILE - 1)) // QUERY_TILE
    width, logits, lanes = blocks * LANES, f.scratch.cast(F32), target.lanes
    q_scales = logits.offset(width * QUERY_TILE)
    corrections = q_scales.offset(QUERY_TILE).cast(I32)
    q_codes = corrections.offset(QUERY_TILE).cast(I8)
    begin, end = f.thread_range(tiles * op.heads)

    def quantized(row: Value) -> tuple[Pointer, Pointer, Pointer]:
        return q_codes.offset(row * HEAD_DIM), q_scales.offset(row), corrections.offset(row)

    with f.loop(end, start=begin) as unit:
        # The last tile of a head begins earlier, and computes some queries again.
        head, first = unit // tiles, (unit % tiles * QUERY_TILE).min(op.queries - QUERY_TILE)
        source = op.q.offset(head * op.q_head_stride + first * op.q_row_stride)
        with f.loop(QUERY_TILE) as row:
            query = source.offset(row * op.q_row_stride)
            f.call(quantize_row, query, query, query, *quantized(row), f.const(HEAD_DIM))
        with f.loop(blocks) as block, f.loop(QUERY_TILE, step=QUERIES_AT_ONCE) as row:
            keys = head * blocks + block
            k_codes, k_scales = op.k_codes.offset(keys * (HEAD_DIM * LANES)), op.k_scales.offset(keys * LANES)
            row_codes, row_scales, row_corrections = quantized(row)
            places = [(query, 0, part) for query in range(QUERIES_AT_ONCE) for part in range(LANES // lanes)]
            sums = {place: f.variable(f.zeros(I32, lanes)) for place in places}
            with f.loop(HEAD_DIM, step=4 * DOT_INPUTS) as i:
                rows = [row_codes.offset(number * HEAD_DIM) for number in range(QUERIES_AT_ONCE)]
                emit_dot_16(f, target, i, [k_codes], rows, sums)
            for number, _, part in places:
                exact = sums[number, 0, part].value
                if not target.signed_weights:
                    exact = exact + row_corrections[number]
                scale = k_scales.load_vector(part * lanes, lanes) * (row_scales[number] * HEAD_DIM**-0.5)
                at = block * LANES + part * lanes
                logit = ((f.iota(lanes) + at) < op.keys).select(exact.cast(F32) * scale, -math.inf)
                logits[(row + number) * width + at] = logit
        with f.loop(QUERY_TILE) as row:
            weights = logits.offset(row * width)
            scale = f.const(1.0, F32) / emit_softmax_numerators(f, weights, blocks)
            with f.loop(width, step=LANES) as at:
                weights[at] = weights.load_vector(at, LANES) * scale
        with f.loop(PARTS) as channels, f.loop(QUERY_TILE, step=QUERIES_AT_ONCE) as row:
            totals = [f.variable(f.zeros(F32, LANES)) for _ in range(QUERIES_AT_ONCE)]
            values = op.packed_values.offset((head * PARTS + channels) * width * LANES)
            with f.loop(op.keys) as key:
                value = values.load_vector(key * LANES, LANES)
                for number, total in enumerate(totals):
                    total.value = value.fma(logits[(row + number) * width + key], total.value)
            for number, total in enumerate(totals):
                at = ((first + row + number) * op.heads + head) * HEAD_DIM + channels * LANES
                op.out[at] = total.value
    return f.ret()
