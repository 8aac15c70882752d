"""Attention of the flow: every query attends to every key, in int8 with float32 softmax.

Shapes and layout (blocks = ceil(keys / 64); head_dim = 64)
    q, k, v     (heads, rows, 64) float32, with strides of heads and rows
    k_codes     (heads, 4 · blocks, 64 / 4, 16, 4) int8     four channels of 16 keys side by side
    k_scales    (heads, 4 · blocks, 16) float32             one scale per key
    v_codes     (heads, 4, blocks, 64 / 4, 16, 4) int8      four keys of 16 channels side by side
    v_scales    (heads, 4, blocks, 16) float32              one scale per channel and block of keys
    out         (queries, heads, 64) float32

Pseudo-code, after packed_keys.py or project_heads.py have packed keys and values
    for each tile of 16 queries of a head:
        q_codes, q_scales = quantize(q[tile])
        for block in blocks, four queries at a time:
            logits = dot(q_codes, k_codes[block]) · k_scales[block];  peaks[query, block] = max(logits)
        for the same block, four queries at a time:
            p_codes[query, block] = round(127 · exp(logits - peak))              # 255 on AVX-512
        p_scales[query, block] = exp(peak - max peak), over the sum of all p_codes · exp(…)
        for block in blocks, four queries at a time:                             # a GEMM with values as weights
            totals[query] += dot(p_codes[query, block], v_codes[block]) · p_scale · v_scales[block]

Why it is fast: both products are int8 dot products with 16 results in the lanes, without a sum across lanes; a
tile of queries goes through a block of keys, and later of values, while it is in the L1 cache.
The logits of a block never leave the L1 cache. A block's exponentials are quantized as they come, because its
largest becomes 127 whatever the other blocks hold; so small weights keep their precision beside large ones. An
exponential that becomes a code needs few digits: one square, completed, to the sixteenth power.
"""

from __future__ import annotations

import math
from functools import reduce
from types import SimpleNamespace
from typing import Any, Final

from llvmlite import ir

from nightingale.backends.cpu.kernels import avx512_weights
from nightingale.backends.cpu.kernels.int8_gemm import (
    emit_dot_16,
    emit_quantization,
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
from nightingale.backends.cpu.kernels.packed_keys import (
    BLOCK_KEYS,
    HEAD_DIM,
    PARTS,
    FlowAttentionOp,
    PackedHeads,
    padded_keys,
    place_of_key,
)
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, Isa, Target
from nightingale.backends.cpu.kernels.thread_pool import Operation
from nightingale.backends.cpu.kernels.vector_math import (
    EXP2_ROOT_SERIES,
    LANES,
    ROUNDING,
    ROUNDING_BITS,
    emit_exp2,
)
from nightingale.backends.shared.int8_blocks import INT8_MAX, ZERO_POINT

QUERIES_AT_ONCE: Final = 4
"""Queries for whose sums there are registers."""
QUERY_TILE: Final = 16
"""Queries that a thread takes through all keys."""
ROWS_PREFETCHED: Final = 2
"""Rows of the next tile that are prefetched while a block of keys is computed."""
WEIGHTS_AT_ONCE: Final = 32
"""Independent results that hide the time from one instruction to the next."""
LOWEST: Final = -1e30
MIN_EXPONENT: Final = -9.0
"""The lowest power of two that is quantized; 127 · 2**-9 has the code 0."""
UNIT: Final = math.sqrt(EXP2_ROOT_SERIES[1] * INT8_MAX ** (1 / 16))
"""Logits are stored times UNIT / ln 2, so that the square is completed without another factor: (u + OFFSET)² + REST."""
OFFSET: Final = UNIT * EXP2_ROOT_SERIES[0] / (2 * EXP2_ROOT_SERIES[1])
REST: Final = INT8_MAX ** (1 / 16) * (1 - EXP2_ROOT_SERIES[0] ** 2 / (4 * EXP2_ROOT_SERIES[1]))
LOGIT_SCALE: Final = HEAD_DIM**-0.5 * math.log2(math.e) * UNIT


def scratch_bytes(keys: int) -> int:
    """Return the bytes that a thread needs for a tile of queries."""
    padded = padded_keys(keys)
    return QUERY_TILE * (4 * BLOCK_KEYS + 5 * HEAD_DIM + 8 + padded + 2 * 4 * padded // BLOCK_KEYS)


class _Tile:
    """A thread's memory for a tile of queries: their codes, and the quantized weights of all keys."""

    def __init__(self, start: Pointer, blocks: Value) -> None:
        self.width = blocks * BLOCK_KEYS
        self.blocks = blocks
        self.logits = start.cast(F32)
        self.totals = self.logits.offset(QUERY_TILE * BLOCK_KEYS)
        self.p_codes = self.totals.offset(QUERY_TILE * HEAD_DIM).cast(I8)
        self.q_codes = self.p_codes.offset(self.width * QUERY_TILE)
        self.q_scales = self.q_codes.offset(HEAD_DIM * QUERY_TILE).cast(F32)
        self.q_corrections = self.q_scales.offset(QUERY_TILE).cast(I32)
        self.peaks = self.q_corrections.offset(QUERY_TILE).cast(F32)
        """Largest logits by block and query; then the scales of the weights."""
        self.sums = self.peaks.offset(blocks * QUERY_TILE)


def emit_flow_attention(module: ir.Module, target: Target) -> Operation:
    """Emit attention over packed keys and values."""
    f = Operation(module, "flow_attention")
    op = f.args(FlowAttentionOp)
    blocks = (op.keys + (BLOCK_KEYS - 1)) // BLOCK_KEYS
    tiles = (op.queries + (QUERY_TILE - 1)) // QUERY_TILE
    tile, packed = _Tile(f.scratch, blocks), PackedHeads(op, blocks)
    logits, weights = _emit_logits(module, target), _emit_weights(module, target)
    values = _emit_values(module, target)
    # On ARM a vector is four registers, so one query alone has independent instructions.
    queries_at_once = QUERIES_AT_ONCE if target.lanes == LANES else 1
    begin, end = f.thread_range(tiles * op.heads)
    with f.loop(end, start=begin) as unit:
        # The last tile of a head begins earlier, and computes some queries again.
        head, first = unit // tiles, (unit % tiles * QUERY_TILE).min(op.queries - QUERY_TILE)
        with f.loop(QUERY_TILE, step=queries_at_once) as row:
            query = op.q.offset(head * op.q_head_stride + (first + row) * op.q_row_stride)
            _emit_quantize_queries(f, target, query, op.q_row_stride, tile, row, queries_at_once)
        with f.loop(blocks) as block:
            start, own = block * BLOCK_KEYS, block * QUERY_TILE
            keys = packed.keys(head, block)
            if target.prefetch_bytes:
                _emit_prefetch_rows(f, op, (unit + 1) // tiles, (unit + 1) % tiles, block)
            with f.loop(QUERY_TILE, step=QUERIES_AT_ONCE) as row:
                given = (
                    tile.q_codes.offset(row * HEAD_DIM),
                    tile.q_corrections.offset(row),
                    tile.q_scales.offset(row),
                )
                f.call(
                    logits, *keys, *given, tile.logits.offset(row * BLOCK_KEYS), tile.peaks.offset(own + row)
                )
            with f.loop(QUERY_TILE, step=QUERIES_AT_ONCE) as row:
                given = (
                    tile.logits.offset(row * BLOCK_KEYS),
                    tile.q_scales.offset(row),
                    tile.peaks.offset(own + row),
                )
                codes, sums = tile.p_codes.offset(row * tile.width + start), tile.sums.offset(own + row)
                f.call(weights, *given, codes, sums, blocks)
                with f.if_then(start + BLOCK_KEYS > op.keys):
                    _emit_forget_padding(f, target, codes, sums, tile.width, start + BLOCK_KEYS - op.keys)
        _emit_scales(f, tile)
        with f.loop(QUERY_TILE * HEAD_DIM, step=LANES) as at:
            tile.totals[at] = f.zeros(F32, LANES)
        with f.loop(blocks) as block, f.loop(QUERY_TILE, step=QUERIES_AT_ONCE) as row:
            codes = tile.p_codes.offset(row * tile.width + block * BLOCK_KEYS)
            given = codes, tile.peaks.offset(block * QUERY_TILE + row), tile.totals.offset(row * HEAD_DIM)
            f.call(values, *packed.values(head, block), *given, blocks)
        with f.loop(QUERY_TILE) as row:
            out = op.out.offset(((first + row) * op.heads + head) * HEAD_DIM)
            for part in range(0, HEAD_DIM, LANES):
                out[part] = tile.totals.load_vector(row * HEAD_DIM + part, LANES)
    return f.ret()


def _emit_prefetch_rows(f: Function, op: SimpleNamespace, head: Value, tile: Value, block: Value) -> None:
    """Prefetch some rows of the next tile, two for each block of keys: its queries, and where its results will be.

    They lie apart from each other and in no nearer cache than the third, of which the hardware prefetches nothing.
    """
    with f.loop(
        (block * ROWS_PREFETCHED + ROWS_PREFETCHED).min(QUERY_TILE), start=block * ROWS_PREFETCHED
    ) as row:
        place = (tile * QUERY_TILE).min(op.queries - QUERY_TILE) + row
        query = op.q.offset(head * op.q_head_stride + place * op.q_row_stride)
        result = op.out.offset((place * op.heads + head) * HEAD_DIM)
        for part in range(0, HEAD_DIM, LANES):
            query.prefetch(part)
            result.prefetch(part)


def _emit_forget_padding(
    f: Function, target: Target, codes: Pointer, sums: Pointer, width: Value, padding: Value
) -> None:
    """Subtract the weights of the keys that fill up a block from the sums; they repeat the key before them.

    Their values are zero.
    """
    last = f.const(BLOCK_KEYS - 1) - padding
    with f.loop(QUERIES_AT_ONCE) as query:
        code = codes[query * width + place_of_key(target, last)].widen(I64)
        sums[query] = sums[query] - (code * padding).cast(F32)


def _emit_quantize_queries(
    f: Function, target: Target, query: Pointer, stride: Value, tile: _Tile, row: Value, count: int
) -> None:
    """Quantize `count` queries from `row` on; their scales include what logits are multiplied by.

    Their instructions alternate, because those of one query wait for each other.
    """
    found = [
        emit_quantization([query.load_vector(stride * number + part * LANES, LANES) for part in range(PARTS)])
        for number in range(count)
    ]
    code_sums = [f.zeros(I32, LANES)] * count
    for part, codes in enumerate(zip(*(codes for _, codes in found), strict=True)):
        for number, code in enumerate(codes):
            code_sums[number] = code_sums[number] + code
            tile.q_codes[(row + number) * HEAD_DIM + part * LANES] = code.cast(I8)
    for number, (scale, _) in enumerate(found):
        tile.q_scales[row + number] = scale * LOGIT_SCALE
        if not target.signed_weights:
            tile.q_corrections[row + number] = code_sums[number].reduce_sum() * -ZERO_POINT


def _emit_logits(module: ir.Module, target: Target) -> Function:
    """Emit logits (QUERIES_AT_ONCE, BLOCK_KEYS) of some queries over their scales, and the largest of each query."""
    params = {"k_codes": I8, "k_scales": F32, "q_codes": I8, "q_corrections": I32, "q_scales": F32}
    f = Function(module, "flow_logits", {**params, "logits": F32, "peaks": F32}, inline=True)
    k_codes, k_scales, q_codes, corrections, scales, logits, peaks = f.params
    lanes, queries = target.lanes, range(QUERIES_AT_ONCE)
    tiles = range(target.attention_tiles)
    places = [(query, tile, part) for query in queries for tile in tiles for part in range(LANES // lanes)]
    rows = [q_codes.offset(number * HEAD_DIM) for number in queries]
    with f.loop(BLOCK_KEYS, step=len(tiles) * LANES) as key:
        starts = [target.emit_sums(f, corrections[query]) for query in queries]
        sums = {place: f.variable(starts[place[0]]) for place in places}
        keys = [k_codes.offset((key + tile * LANES) * HEAD_DIM) for tile in tiles]
        with f.loop(HEAD_DIM, step=4 * DOT_INPUTS) as i:
            emit_dot_16(f, target, i, keys, rows, sums)
        for query, tile, part in places:
            exact = target.emit_sums_as_float(sums[query, tile, part].value)
            at = key + tile * LANES + part * lanes
            logits[at + query * BLOCK_KEYS] = exact * k_scales.load_vector(at, lanes)
    found = [_load_logits(logits, query, LANES) for query in queries]
    if target.isa == Isa.AVX512:
        peaks[0] = avx512_weights.emit_maxima(found) * scales.load_vector(0, QUERIES_AT_ONCE)
    else:
        for query, own in enumerate(found):
            peaks[query] = reduce(Value.max, own).reduce_max() * scales[query]
    return f.ret()


def _load_logits(logits: Pointer, query: int | Value, lanes: int) -> list[Value]:
    return [logits.load_vector(query * BLOCK_KEYS + part, lanes) for part in range(0, BLOCK_KEYS, lanes)]


def _emit_weights(module: ir.Module, target: Target) -> Function:
    """Emit the quantized weights of a block of keys for some queries, whose codes are `blocks` blocks apart."""
    params = {"logits": F32, "scales": F32, "peaks": F32, "codes": I8, "sums": F32, "blocks": I64}
    f = Function(module, "flow_weights", params, inline=True)
    logits, scales, peaks, codes, sums, blocks = f.params
    if target.isa == Isa.AVX512:
        found = [_load_logits(logits, query, LANES) for query in range(QUERIES_AT_ONCE)]
        own_scales, own_peaks = (own.load_vector(0, QUERIES_AT_ONCE) for own in (scales, peaks))
        all_codes, sums[0] = avx512_weights.emit_weights(f, found, own_scales, own_peaks, UNIT)
        for number, code in enumerate(all_codes):
            codes[blocks * (number * BLOCK_KEYS)] = code
        return f.ret()
    with f.loop(QUERIES_AT_ONCE) as query:
        shift, own = f.const(OFFSET, F32) - peaks[query], codes.offset(blocks * (query * BLOCK_KEYS))
        total = f.zeros(I32, WEIGHTS_AT_ONCE)
        for number, logit in enumerate(_load_logits(logits, query, WEIGHTS_AT_ONCE)):
            u = logit.fma(logit.splat(scales[query]), logit.splat(shift)).max(UNIT * MIN_EXPONENT + OFFSET)
            power = u.fma(u, REST)
            for _ in range(4):
                power = power * power
            rounded = (power + ROUNDING).bitcast(total.ir_type)
            own[number * WEIGHTS_AT_ONCE] = rounded.cast(I8)
            total = total + rounded
        code_sum = total.reduce_sum() - (BLOCK_KEYS * ROUNDING_BITS & 0xFFFFFFFF)
        sums[query] = code_sum.cast(F32)
    return f.ret()


def _emit_scales(f: Function, tile: _Tile) -> None:
    """Replace the peaks by the scales of the blocks' weights, so that a query's weights sum up to 1."""
    highest = f.variable(f.zeros(F32, QUERY_TILE) + LOWEST)
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
    """Emit totals (QUERIES_AT_ONCE, HEAD_DIM) += weights · values of a block; all parts are `blocks` blocks apart."""
    params = {"codes": I8, "scales": F32, "p_codes": I8, "p_scales": F32, "totals": F32, "blocks": I64}
    f = Function(module, "flow_values", params, inline=True)
    codes, scales, p_codes, p_scales, totals, blocks = f.params
    lanes, queries, at_once = target.lanes, range(QUERIES_AT_ONCE), target.attention_tiles
    rows = [p_codes.offset(blocks * (query * BLOCK_KEYS)) for query in queries]
    for first in range(0, PARTS, at_once):
        tiles = range(at_once)
        places = [
            (query, tile, part) for query in queries for tile in tiles for part in range(LANES // lanes)
        ]
        start = target.emit_sums(f, f.const(0, I32))
        sums = {place: f.variable(start) for place in places}
        values = [codes.offset(blocks * ((first + tile) * BLOCK_KEYS * LANES)) for tile in tiles]
        with f.loop(BLOCK_KEYS, step=4 * DOT_INPUTS) as i:
            emit_dot_16(f, target, i, values, rows, sums, rows_are_unsigned=True)
        for query, tile, part in places:
            exact = target.emit_sums_as_float(sums[query, tile, part].value)
            at = part * lanes
            scale = scales.load_vector(blocks * ((first + tile) * LANES) + at, lanes) * p_scales[query]
            at += query * HEAD_DIM + (first + tile) * LANES
            totals[at] = exact.fma(scale, totals.load_vector(at, lanes))
    return f.ret()
