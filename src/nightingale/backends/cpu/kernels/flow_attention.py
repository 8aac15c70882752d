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
                    for block in blocks, four queries at a time:
                        logits = dot(q_codes, k_codes[block]) · q_scale · k_scales[block] / 8
                        peaks[query, block] = max(logits)
                        p_codes[query, block] = round(127 · exp(logits - peak))
                    p_scales[query, block] = exp(peak - max peak), over the sum of all p_codes · exp(…)
                    for 16 or 32 channels, two or four queries at a time:      # a GEMM with values as weights
                        out[query, channels] = Σ_block dot(p_codes, v_codes[channels, block]) · p_scale · v_scales

Why it is fast: both products are int8 dot products with 16 results in the lanes, without a sum across lanes; a
tile of queries goes through all keys, and then through all values of 16 channels, while they are in the cache.
The logits of a block never leave the L1 cache. A block's exponentials are quantized as they come, because its
largest becomes 127 whatever the other blocks hold; so small weights keep their precision beside large ones. An
exponential that becomes a code needs few digits: one square, completed, to the sixteenth power.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.int8_gemm import (
    emit_dot_16,
    emit_quantization,
    emit_quantization_factor,
)
from nightingale.backends.cpu.kernels.llvm_builder import (
    F32,
    I8,
    I32,
    I64,
    Function,
    Pointer,
    Value,
)
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, Target
from nightingale.backends.cpu.kernels.thread_pool import Arg, Operation
from nightingale.backends.cpu.kernels.vector_math import (
    LANES,
    ROUNDING,
    ROUNDING_BITS,
    emit_exp2,
    emit_nearest_int,
)
from nightingale.backends.shared.int8_blocks import INT8_MAX, ZERO_POINT

HEAD_DIM: Final = 64
PARTS: Final = HEAD_DIM // LANES
QUERIES_AT_ONCE: Final = 4
"""Queries for whose sums there are registers."""
QUERY_TILE: Final = 16
"""Queries that a thread takes through all keys."""
BLOCK_KEYS: Final = 64
"""Keys whose weights, and whose values, share a scale."""
WEIGHTS_AT_ONCE: Final = 32
"""Independent results that hide the time from one instruction to the next."""
MASKED: Final = -1e30
WEIGHT_SERIES: Final = (0.04325128556, 0.0008661396275)
"""127 · 2**s is (127**(1/16) · (1 + c₁ s + c₂ s²))**16 to 0.03 for s from MIN_EXPONENT to 0: a thirtieth of a code."""
MIN_EXPONENT: Final = -9.0
"""The lowest power of two that is quantized; 127 · 2**-9 has the code 0."""
UNIT: Final = math.sqrt(WEIGHT_SERIES[1] * INT8_MAX ** (1 / 16))
"""Logits are stored times UNIT / ln 2, so that the square is completed without another factor: (u + OFFSET)² + REST."""
OFFSET: Final = UNIT * WEIGHT_SERIES[0] / (2 * WEIGHT_SERIES[1])
REST: Final = INT8_MAX ** (1 / 16) * (1 - WEIGHT_SERIES[0] ** 2 / (4 * WEIGHT_SERIES[1]))
LOGIT_SCALE: Final = HEAD_DIM**-0.5 * math.log2(math.e) * UNIT


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
    """Return the bytes that a thread needs for a tile of queries."""
    padded = _padded(keys)
    per_query = HEAD_DIM + 8 + padded + 3 * 4 * padded // BLOCK_KEYS
    return QUERY_TILE * per_query + 4 * QUERIES_AT_ONCE * BLOCK_KEYS


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
            # The last key fills up the last block; its logits there are masked.
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
            op.v_scales[own * LANES] = magnitude.value * (1 / INT8_MAX)
            factor = emit_quantization_factor(magnitude.value)
            with f.loop(BLOCK_KEYS, step=DOT_INPUTS) as key:
                packed = f.zeros(I32, LANES)
                for place in range(DOT_INPUTS):
                    code = emit_nearest_int(values(key + place), factor)
                    byte = (code if target.signed_weights else code + ZERO_POINT) & 255
                    packed = packed + byte * (1 << (8 * place))
                op.v_codes.cast(I32)[(own * (BLOCK_KEYS // DOT_INPUTS) + key // DOT_INPUTS) * LANES] = packed
    return f.ret()


class _Tile:
    """A thread's memory for a tile of queries: their codes, and the quantized weights of all keys."""

    def __init__(self, start: Pointer, blocks: Value) -> None:
        self.width = blocks * BLOCK_KEYS
        self.blocks = blocks
        self.logits = start.cast(F32)
        self.q_scales = self.logits.offset(QUERIES_AT_ONCE * BLOCK_KEYS)
        self.q_corrections = self.q_scales.offset(QUERY_TILE).cast(I32)
        self.peaks = self.q_corrections.offset(QUERY_TILE).cast(F32)
        """Largest logits by block and query; then the scales of the weights."""
        self.sums = self.peaks.offset(blocks * QUERY_TILE)
        self.corrections = self.sums.offset(blocks * QUERY_TILE).cast(I32)
        self.q_codes = self.corrections.offset(blocks * QUERY_TILE).cast(I8)
        self.p_codes = self.q_codes.offset(HEAD_DIM * QUERY_TILE)


def emit_flow_attention(module: ir.Module, target: Target) -> Operation:
    """Emit attention over packed keys and values."""
    f = Operation(module, "flow_attention")
    op = f.args(FlowAttentionOp)
    blocks = (op.keys + (BLOCK_KEYS - 1)) // BLOCK_KEYS
    tiles = (op.queries + (QUERY_TILE - 1)) // QUERY_TILE
    tile = _Tile(f.scratch, blocks)
    logits, weights = _emit_logits(module, target), _emit_weights(module, target)
    values = _emit_values(module, target)
    begin, end = f.thread_range(tiles * op.heads)
    with f.loop(end, start=begin) as unit:
        # The last tile of a head begins earlier, and computes some queries again.
        head, first = unit // tiles, (unit % tiles * QUERY_TILE).min(op.queries - QUERY_TILE)
        with f.loop(QUERY_TILE) as row:
            query = op.q.offset(head * op.q_head_stride + (first + row) * op.q_row_stride)
            _emit_quantize_query(f, target, query, tile, row)
        with f.loop(blocks) as block, f.loop(QUERY_TILE, step=QUERIES_AT_ONCE) as row:
            at, start = (head * blocks + block) * BLOCK_KEYS, block * BLOCK_KEYS
            codes, scales = op.k_codes.offset(at * HEAD_DIM), op.k_scales.offset(at)
            queries = tile.q_codes.offset(row * HEAD_DIM)
            f.call(logits, codes, scales, queries, tile.q_corrections.offset(row), tile.logits)
            with f.if_then(start + BLOCK_KEYS > op.keys), f.loop(BLOCK_KEYS, start=op.keys - start) as key:
                for query in range(QUERIES_AT_ONCE):
                    tile.logits[key + query * BLOCK_KEYS] = f.const(MASKED, F32)
            own = block * QUERY_TILE + row
            places = tile.p_codes.offset(row * tile.width + start), tile.peaks.offset(own)
            results = *places, tile.sums.offset(own), tile.corrections.offset(own)
            f.call(weights, tile.logits, tile.q_scales.offset(row), *results, blocks)
        _emit_scales(f, tile)
        sizes = target.attention_tiles
        with f.loop(PARTS, step=sizes.values) as part, f.loop(QUERY_TILE, step=sizes.value_queries) as row:
            own = (head * PARTS + part) * blocks
            codes, scales = op.v_codes.offset(own * (BLOCK_KEYS * LANES)), op.v_scales.offset(own * LANES)
            places = tile.p_codes.offset(row * tile.width), tile.peaks.offset(row)
            out = op.out.offset(((first + row) * op.heads + head) * HEAD_DIM + part * LANES)
            f.call(values, codes, scales, *places, tile.corrections.offset(row), out, blocks, op.heads)
    return f.ret()


def _emit_quantize_query(f: Function, target: Target, query: Pointer, tile: _Tile, row: Value) -> None:
    """Quantize a query; its scale includes what logits are multiplied by."""
    scale, codes = emit_quantization([query.load_vector(part * LANES, LANES) for part in range(PARTS)])
    tile.q_scales[row] = scale * LOGIT_SCALE
    code_sum = f.zeros(I32, LANES)
    for part, code in enumerate(codes):
        code_sum = code_sum + code
        tile.q_codes[row * HEAD_DIM + part * LANES] = code.cast(I8)
    if not target.signed_weights:
        tile.q_corrections[row] = code_sum.reduce_sum() * -ZERO_POINT


def _emit_logits(module: ir.Module, target: Target) -> Function:
    """Emit logits (QUERIES_AT_ONCE, BLOCK_KEYS) of some queries and a block of keys, over the queries' scales."""
    params = {"codes": I8, "scales": F32, "q_codes": I8, "q_corrections": I32, "logits": F32}
    f = Function(module, "flow_logits", params)
    codes, scales, q_codes, corrections, logits = f.params
    lanes, queries = target.lanes, range(QUERIES_AT_ONCE)
    tiles = range(target.attention_tiles.keys)
    places = [(query, tile, part) for query in queries for tile in tiles for part in range(LANES // lanes)]
    rows = [q_codes.offset(number * HEAD_DIM) for number in queries]
    with f.loop(BLOCK_KEYS, step=len(tiles) * LANES) as key:
        starts = [target.emit_sums(f, corrections[query]) for query in queries]
        sums = {place: f.variable(starts[place[0]]) for place in places}
        keys = [codes.offset((key + tile * LANES) * HEAD_DIM) for tile in tiles]
        with f.loop(HEAD_DIM, step=4 * DOT_INPUTS) as i:
            emit_dot_16(f, target, i, keys, rows, sums)
        for query, tile, part in places:
            exact = target.emit_sums_as_float(sums[query, tile, part].value)
            at = key + tile * LANES + part * lanes
            logits[at + query * BLOCK_KEYS] = exact * scales.load_vector(at, lanes)
    return f.ret()


def _emit_weights(module: ir.Module, target: Target) -> Function:
    """Emit the quantized weights of a block of keys for some queries, whose codes are `blocks` blocks apart."""
    params = {"logits": F32, "scales": F32, "codes": I8, "peaks": F32, "sums": F32, "corrections": I32}
    f = Function(module, "flow_weights", params | {"blocks": I64})
    logits, scales, codes, peaks, sums, corrections, blocks = f.params
    for row in range(QUERIES_AT_ONCE):  # all of them first: a maximum across lanes takes long
        parts = [logits.load_vector(row * BLOCK_KEYS + part, LANES) for part in range(0, BLOCK_KEYS, LANES)]
        peaks[row] = reduce(Value.max, parts).reduce_max() * scales[row]
    with f.loop(QUERIES_AT_ONCE) as query:
        shift, own = f.const(OFFSET, F32) - peaks[query], codes.offset(blocks * (query * BLOCK_KEYS))
        total = f.zeros(I32, WEIGHTS_AT_ONCE)
        for place in range(0, BLOCK_KEYS, WEIGHTS_AT_ONCE):
            logit = logits.load_vector(query * BLOCK_KEYS + place, WEIGHTS_AT_ONCE)
            u = logit.fma(logit.splat(scales[query]), logit.splat(shift)).max(UNIT * MIN_EXPONENT + OFFSET)
            power = u.fma(u, REST)
            for _ in range(4):
                power = power * power
            rounded = (power + ROUNDING).bitcast(total.ir_type)
            own[place] = rounded.cast(I8)
            total = total + rounded
        code_sum = total.reduce_sum() - (BLOCK_KEYS * ROUNDING_BITS & 0xFFFFFFFF)
        sums[query] = code_sum.cast(F32)
        if not target.signed_weights:
            corrections[query] = code_sum * -ZERO_POINT
    return f.ret()


def _emit_scales(f: Function, tile: _Tile) -> None:
    """Replace the peaks by the scales of the blocks' weights, so that a query's weights sum up to 1."""
    highest = f.variable(f.zeros(F32, QUERY_TILE) + MASKED)
    total = f.variable(f.zeros(F32, QUERY_TILE))

    def block_rows() -> Any:
        return f.loop(tile.blocks * QUERY_TILE, step=QUERY_TILE)

    with block_rows() as at:
        highest.value = highest.value.max(tile.peaks.load_vector(at, QUERY_TILE))
    with block_rows() as at:
        scale = emit_exp2((tile.peaks.load_vector(at, QUERY_TILE) - highest.value) * (1 / UNIT))
        tile.peaks[at] = scale
        total.value = scale.fma(tile.sums.load_vector(at, QUERY_TILE), total.value)
    inverse = total.value.splat(1.0) / total.value
    with block_rows() as at:
        tile.peaks[at] = tile.peaks.load_vector(at, QUERY_TILE) * inverse


def _emit_values(module: ir.Module, target: Target) -> Function:
    """Emit Σ weight · value of some parts of LANES channels for some queries."""
    params = {"codes": I8, "scales": F32, "p_codes": I8, "p_scales": F32, "p_corrections": I32}
    f = Function(module, "flow_values", {**params, "out": F32, "blocks": I64, "heads": I64})
    codes, scales, p_codes, p_scales, corrections, out, blocks, heads = f.params
    sizes, lanes, parts = target.attention_tiles, target.lanes, range(LANES // target.lanes)
    queries, tiles = range(sizes.value_queries), range(sizes.values)
    places = [(query, tile, part) for query in queries for tile in tiles for part in parts]
    totals = {place: f.variable(f.zeros(F32, lanes)) for place in places}
    with f.loop(blocks) as block:
        starts = [target.emit_sums(f, corrections[block * QUERY_TILE + query]) for query in queries]
        sums = {place: f.variable(starts[place[0]]) for place in places}
        rows = [p_codes.offset((blocks * query + block) * BLOCK_KEYS) for query in queries]
        values = [codes.offset((blocks * tile + block) * (BLOCK_KEYS * LANES)) for tile in tiles]
        for i in range(0, BLOCK_KEYS, 4 * DOT_INPUTS):
            emit_dot_16(f, target, f.const(i), values, rows, sums)
        for query, tile, part in places:
            own, total = block * QUERY_TILE + query, totals[query, tile, part]
            exact = target.emit_sums_as_float(sums[query, tile, part].value)
            scale = scales.load_vector((blocks * tile + block) * LANES + part * lanes, lanes) * p_scales[own]
            total.value = exact.fma(scale, total.value)
    for (query, tile, part), total in totals.items():
        out[heads * (query * HEAD_DIM) + tile * LANES + part * lanes] = total.value
    return f.ret()
