"""Attention of the flow: every query attends to every key, in int8 with float32 softmax.

Shapes and layout (blocks = ceil(keys / 64); head_dim = 64)
    q, k, v     (heads, rows, 64) float32, with strides of heads and rows
    k_codes     (heads, 4 · blocks, 64 / 4, 16, 4) int8     four channels of 16 keys side by side
    k_scales    (heads, 4 · blocks, 16) float32             one scale per key
    v_codes     (heads, 4, blocks, 64 / 4, 16, 4) int8      four keys of 16 channels side by side
    v_scales    (heads, 4, blocks, 16) float32              one scale per channel and block of keys
    out         (queries, heads, 64) float32

Pseudo-code: two operations, with a barrier between them
    pack_keys:  k_codes, k_scales = quantize(k);  v_codes, v_scales = quantize(v)       # by blocks of 64 keys
    attention:  for each tile of 16 queries of a head:
                    q_codes, q_scales = quantize(q[tile])
                    for 16 keys, four queries at a time:                       # a GEMM with keys as weights
                        logits[query, keys] = dot(q_codes, k_codes[keys]) · q_scale · k_scales[keys] / 8
                    for block in blocks:
                        p_codes, p_scales[query, block] = quantize(exp(logits[query, block] - max))
                    for 16 channels, two queries at a time:                    # a GEMM with values as weights
                        out[query, channels] = Σ_block dot(p_codes, v_codes[channels, block]) · p_scale · v_scales
                    out /= Σ exp(logits - max)

Why it is fast: both products are int8 dot products with 16 results in the lanes, without a sum across lanes; a
tile of queries goes through all keys, and then through all values of 16 channels, while they are in the cache.
Each block of weights has a scale of its own, so that small weights keep their precision beside large ones.
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
    Index,
    Pointer,
    Value,
    Variable,
)
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, Target
from nightingale.backends.cpu.kernels.thread_pool import Arg, Operation
from nightingale.backends.cpu.kernels.vector_math import LANES, emit_exp
from nightingale.backends.shared.int8_blocks import INT8_MAX, ZERO_POINT

HEAD_DIM: Final = 64
PARTS: Final = HEAD_DIM // LANES
QUERIES_AT_ONCE: Final = 4
"""Queries for whose sums there are registers."""
QUERIES_OF_VALUES: Final = 2
"""Queries for whose sums and totals there are registers."""
QUERY_TILE: Final = 16
"""Queries that a thread takes through all keys."""
BLOCK_KEYS: Final = 64
"""Keys whose weights, and whose values, share a scale."""


class FlowAttentionOp(Arg):
    """Arguments of both operations. Strides count floats."""

    Q = K = V = OUT = K_SCALES = V_SCALES = F32
    K_CODES = V_CODES = I8
    Q_HEAD_STRIDE = Q_ROW_STRIDE = K_HEAD_STRIDE = K_ROW_STRIDE = V_HEAD_STRIDE = V_ROW_STRIDE = I64
    KEYS = HEADS = I64
    QUERIES = I64
    """At least QUERY_TILE."""


def packed_bytes(keys: int, heads: int) -> tuple[int, int, int, int]:
    """Return the bytes of K_CODES, K_SCALES, V_CODES and V_SCALES."""
    padded = heads * _padded(keys)
    return padded * HEAD_DIM, 4 * padded, padded * HEAD_DIM, 4 * padded // BLOCK_KEYS * HEAD_DIM


def scratch_bytes(keys: int) -> int:
    """Return the bytes that a thread needs for logits, and for quantized queries and weights."""
    padded = _padded(keys)
    return QUERY_TILE * (5 * padded + 8 * padded // BLOCK_KEYS + HEAD_DIM + 12)


def _padded(keys: int) -> int:
    return -(-keys // BLOCK_KEYS) * BLOCK_KEYS


def emit_pack_keys(module: ir.Module, target: Target) -> Operation:
    f = Operation(module, "pack_keys")
    op = f.args(FlowAttentionOp)
    blocks = (op.keys + (BLOCK_KEYS - 1)) // BLOCK_KEYS
    begin, end = f.thread_range(blocks * op.heads)
    with f.loop(end, start=begin) as unit:
        head, first = unit // blocks, unit % blocks * BLOCK_KEYS

        def row(source: Pointer, head_stride: Value, row_stride: Value, key: Value) -> Pointer:
            # The last key fills up the last block; its logits there are masked by their position.
            number = (first + key).min(op.keys - 1)
            return source.offset(head * head_stride + number * row_stride)

        with f.loop(BLOCK_KEYS) as key:
            source = row(op.k, op.k_head_stride, op.k_row_stride, key)
            vectors = [source.load_vector(number * LANES, LANES) for number in range(PARTS)]
            scale, codes = emit_quantization(vectors)
            op.k_scales[unit * BLOCK_KEYS + key] = scale
            at = (unit * BLOCK_KEYS + key // LANES * LANES) * (HEAD_DIM // DOT_INPUTS) + key % LANES
            for number, code in enumerate(codes):
                stored = code if target.signed_weights else code + ZERO_POINT
                fours = stored.cast(I8).bitcast(ir.VectorType(I32, LANES // DOT_INPUTS))
                for four in range(LANES // DOT_INPUTS):
                    spot = at + (number * (LANES // DOT_INPUTS) + four) * LANES
                    op.k_codes.cast(I32)[spot] = fours.extract(four)
        with f.loop(PARTS) as part:
            own = (head * PARTS + part) * blocks + unit % blocks

            def values(key: Value) -> Value:
                source = row(op.v, op.v_head_stride, op.v_row_stride, key)
                return source.load_vector(part * LANES, LANES)

            magnitude = f.variable(f.zeros(F32, LANES))
            with f.loop(BLOCK_KEYS) as key:
                magnitude.value = magnitude.value.max(values(key).abs())
            scale = magnitude.value / INT8_MAX
            op.v_scales[own * LANES] = scale
            divisor = (scale > 0.0).select(scale, 1.0)
            with f.loop(BLOCK_KEYS, step=DOT_INPUTS) as key:
                packed = f.zeros(I32, LANES)
                for place in range(DOT_INPUTS):
                    code = (values(key + place) / divisor).round().cast(I32)
                    byte = (code if target.signed_weights else code + ZERO_POINT) & 255
                    packed = packed + byte * (1 << (8 * place))
                op.v_codes.cast(I32)[(own * (BLOCK_KEYS // DOT_INPUTS) + key // DOT_INPUTS) * LANES] = packed
    return f.ret()


class QuantizedRows:
    """Rows of int8 codes in a thread's memory: `width` codes, and a scale and a correction for each block."""

    def __init__(self, start: Pointer, width: Index, blocks: Index) -> None:
        self._scales = start.cast(F32)
        self._corrections = self._scales.offset(blocks * QUERY_TILE).cast(I32)
        self._codes = self._corrections.offset(blocks * QUERY_TILE).cast(I8)
        self._width, self._blocks = width, blocks
        self.end = self._codes.offset(width * QUERY_TILE)

    def row(self, row: Value) -> tuple[Pointer, Pointer, Pointer]:
        """Return codes, scales and corrections of a row."""
        block = row * self._blocks
        return (
            self._codes.offset(row * self._width),
            self._scales.offset(block),
            self._corrections.offset(block),
        )


def emit_flow_attention(module: ir.Module, target: Target, quantize_row: Function) -> Operation:
    """Emit attention over packed keys and values; `quantize_row` quantizes by blocks of HEAD_DIM."""
    f = Operation(module, "flow_attention")
    op = f.args(FlowAttentionOp)
    blocks = (op.keys + (BLOCK_KEYS - 1)) // BLOCK_KEYS
    tiles = (op.queries + (QUERY_TILE - 1)) // QUERY_TILE
    width, logits = blocks * BLOCK_KEYS, f.scratch.cast(F32)
    inverse_sums = logits.offset(width * QUERY_TILE)
    queries = QuantizedRows(inverse_sums.offset(QUERY_TILE), HEAD_DIM, 1)
    weights = QuantizedRows(queries.end, width, blocks)
    begin, end = f.thread_range(tiles * op.heads)
    with f.loop(end, start=begin) as unit:
        # The last tile of a head begins earlier, and computes some queries again.
        head, first = unit // tiles, (unit % tiles * QUERY_TILE).min(op.queries - QUERY_TILE)
        source = op.q.offset(head * op.q_head_stride + first * op.q_row_stride)
        with f.loop(QUERY_TILE) as row:
            query = source.offset(row * op.q_row_stride)
            f.call(quantize_row, query, query, query, *queries.row(row), f.const(HEAD_DIM))
        with f.loop(width, step=LANES) as key, f.loop(QUERY_TILE, step=QUERIES_AT_ONCE) as row:
            at = head * width + key
            codes, scales = op.k_codes.offset(at * HEAD_DIM), op.k_scales.offset(at)
            _emit_logits(f, target, op.keys, key, codes, scales, queries.row(row), logits.offset(row * width))
        with f.loop(QUERY_TILE) as row:
            weight_sum = _emit_weights(f, target, logits.offset(row * width), blocks, weights.row(row))
            inverse_sums[row] = f.const(1.0, F32) / weight_sum
        with f.loop(PARTS) as part, f.loop(QUERY_TILE, step=QUERIES_OF_VALUES) as row:
            own = (head * PARTS + part) * blocks
            codes, scales = op.v_codes.offset(own * (BLOCK_KEYS * LANES)), op.v_scales.offset(own * LANES)
            rows = [weights.row(row + number) for number in range(QUERIES_OF_VALUES)]
            for number, total in enumerate(_emit_values(f, target, blocks, codes, scales, rows)):
                at = ((first + row + number) * op.heads + head) * HEAD_DIM + part * LANES
                for place, vector in enumerate(total):
                    op.out[at + place * target.lanes] = vector.value * inverse_sums[row + number]
    return f.ret()


def _emit_logits(
    f: Function,
    target: Target,
    keys: Value,
    first: Value,
    codes: Pointer,
    scales: Pointer,
    queries: tuple[Pointer, Pointer, Pointer],
    logits: Pointer,
) -> None:
    """Emit the logits of QUERIES_AT_ONCE queries and LANES keys from `first` on."""
    lanes, (row_codes, row_scales, corrections) = target.lanes, queries
    places = [(query, 0, part) for query in range(QUERIES_AT_ONCE) for part in range(LANES // lanes)]
    sums = {place: f.variable(f.zeros(I32, lanes)) for place in places}
    with f.loop(HEAD_DIM, step=4 * DOT_INPUTS) as i:
        rows = [row_codes.offset(number * HEAD_DIM) for number in range(QUERIES_AT_ONCE)]
        emit_dot_16(f, target, i, [codes], rows, sums)
    width = (keys + (BLOCK_KEYS - 1)) // BLOCK_KEYS * BLOCK_KEYS
    for number, _, part in places:
        exact = sums[number, 0, part].value
        if not target.signed_weights:
            exact = exact + corrections[number]
        scale = scales.load_vector(part * lanes, lanes) * (row_scales[number] * HEAD_DIM**-0.5)
        at = first + part * lanes
        logit = ((f.iota(lanes) + at) < keys).select(exact.cast(F32) * scale, -math.inf)
        logits[width * number + at] = logit


def _emit_weights(
    f: Function, target: Target, logits: Pointer, blocks: Value, row: tuple[Pointer, Pointer, Pointer]
) -> Value:
    """Emit the quantized exp(logit - max) of a row, by blocks; return their sum before quantization."""
    codes, scales, corrections = row
    running = f.variable(logits.load_vector(0, LANES))
    with f.loop(blocks * BLOCK_KEYS, step=LANES) as at:
        running.value = running.value.max(logits.load_vector(at, LANES))
    maximum, total = running.value.reduce_max(), f.variable(f.zeros(F32, LANES))
    with f.loop(blocks) as block:
        start = block * BLOCK_KEYS
        values = [
            emit_exp(logits.load_vector(start + part, LANES) - maximum)
            for part in range(0, BLOCK_KEYS, LANES)
        ]
        largest = values[0]
        for value in values[1:]:
            largest = largest.max(value)
        for value in values:
            total.value += value
        # Not zero: emit_exp clamps its argument.
        peak = largest.reduce_max()
        scales[block] = peak / INT8_MAX
        factor, code_sum = f.const(float(INT8_MAX), F32) / peak, f.zeros(I32, LANES)
        for part, value in enumerate(values):
            code = (value * factor).round().cast(I32)
            code_sum = code_sum + code
            codes[start + part * LANES] = code.cast(I8)
        if not target.signed_weights:
            corrections[block] = code_sum.reduce_sum() * -ZERO_POINT
    return total.value.reduce_sum()


def _emit_values(
    f: Function,
    target: Target,
    blocks: Value,
    codes: Pointer,
    scales: Pointer,
    rows: list[tuple[Pointer, Pointer, Pointer]],
) -> list[list[Variable]]:
    """Emit Σ weight · value of LANES channels for some rows; return the totals of each row, in vectors."""
    lanes, numbers = target.lanes, range(len(rows))
    parts = range(LANES // lanes)
    totals = [[f.variable(f.zeros(F32, lanes)) for _ in parts] for _ in numbers]
    with f.loop(blocks) as block:
        sums = {(row, 0, part): f.variable(f.zeros(I32, lanes)) for row in numbers for part in parts}
        own, tile = (
            [row[0].offset(block * BLOCK_KEYS) for row in rows],
            codes.offset(block * (BLOCK_KEYS * LANES)),
        )
        with f.loop(BLOCK_KEYS, step=4 * DOT_INPUTS) as i:
            emit_dot_16(f, target, i, [tile], own, sums)
        for row, part in ((row, part) for row in numbers for part in parts):
            exact, total = sums[row, 0, part].value, totals[row][part]
            if not target.signed_weights:
                exact = exact + rows[row][2][block]
            scale = scales.load_vector(block * LANES + part * lanes, lanes) * rows[row][1][block]
            total.value = exact.cast(F32).fma(scale, total.value)
    return totals
