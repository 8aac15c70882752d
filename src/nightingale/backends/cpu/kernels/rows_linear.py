"""Int8 linear layer over many rows, with the norm before it and the activation or residual after it: the flow.

    out = epilogue(norm(x) @ weight.T + bias)          quantization and layout are those of int8_gemm.py

Shapes
    x     (rows, k) float32        out   (rows, n) float32

Pseudo-code, for each thread's share of the rows, ROWS_PER_PASS at a time
    codes, scales = quantize(norm(x[rows]))
    for tile in tiles of 16 outputs, four rows at a time:
        out[rows, tile] = epilogue(gemm(codes, tile))

Why it is fast: with many rows a product is bound by its dot products, so everything else is kept away from them.
Rows and one tile of weights stay in the L1 cache together; 4 rows × 16 outputs are summed in registers and leave
them through the epilogue, straight to `out`; a scale is applied once in 256 inputs where k allows it, which takes
a twentieth of the time of their dot products. Norm, bias, GELU and residual need no pass of their own over memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.int8_gemm import GemmScratch, Norm, emit_dot_16, emit_quantize_row
from nightingale.backends.cpu.kernels.llvm_builder import F32, I8, I32, I64, Function, Value
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, TILE_OUTPUTS, Target
from nightingale.backends.cpu.kernels.thread_pool import Arg, Operation
from nightingale.backends.cpu.kernels.vector_math import emit_gelu_erf

ROWS_PER_PASS: Final = 32
"""Rows that fit in the L1 cache beside a tile of weights."""
ROWS_AT_ONCE: Final = (4, 1)
"""Numbers of rows for which a kernel is emitted; others are composed of them."""


UNROLLED: Final = 32
"""Inputs of one iteration of the innermost loop."""


VECTORS_AT_ONCE: Final = 8


class RowsEpilogue(IntEnum):
    STORE = 0
    ADD = 1
    """Add to what the output holds: the residual connection."""
    GELU = 2


class RowsLinearOp(Arg):
    X = NORM_WEIGHT = NORM_BIAS = W_SCALES = BIAS = OUT = F32
    W_CODES = I8
    ROWS = OUTPUTS = K = EPILOGUE = I64
    HAS_NORM = I64
    """1: LayerNorm before the product."""


def linear_scratch_bytes(k: int, block: int) -> int:
    """Return the bytes that a thread needs for rows of k inputs."""
    return GemmScratch.size_bytes(k, block, ROWS_PER_PASS)


def emit_rows_linear(module: ir.Module, target: Target, block: int) -> Operation:
    plain, normed = (emit_quantize_row(module, target, norm, block) for norm in (Norm.NONE, Norm.LAYER))
    kernels = {rows: _emit_tile(module, target, block, rows) for rows in ROWS_AT_ONCE}
    f = Operation(module, f"rows_linear_{block}")
    op = f.args(RowsLinearOp)
    k, outputs = op.k, op.outputs
    scratch = GemmScratch(f.scratch, k, k // block, ROWS_PER_PASS)
    begin, end = f.thread_range(op.rows, ROWS_AT_ONCE[0])
    with f.loop(end, start=begin, step=ROWS_PER_PASS) as first:
        count = (first + ROWS_PER_PASS).min(end) - first
        with f.if_else(op.has_norm.equals(1)) as (with_norm, without):
            for branch, function in ((with_norm, normed), (without, plain)):
                with branch, f.loop(count) as row:
                    x = op.x.offset((first + row) * k)
                    f.call(function, x, op.norm_weight, op.norm_bias, *scratch.row(row), k)
        with f.loop(outputs, step=_tiles(target) * TILE_OUTPUTS) as output:
            weights = op.w_codes.offset(output * k), op.w_scales.offset(output * (k // block))
            done = f.const(0)
            for several, kernel in kernels.items():
                times = (count - done) // several
                out, bias = op.out.offset((first + done) * outputs + output), op.bias.offset(output)
                f.call(kernel, *weights, *scratch.row(done), bias, out, k, outputs, op.epilogue, times)
                done = times * several
    return f.ret()


def _tiles(target: Target) -> int:
    return target.gemm_tiles(ROWS_AT_ONCE[0])


def _join(values: Sequence[Value]) -> Value:
    """Return the lanes of all values in one vector; their number is a power of two."""
    while len(values) > 1:
        values = [first.join(second) for first, second in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _emit_tile(module: ir.Module, target: Target, block: int, rows: int) -> Function:
    """Emit some tiles of outputs of `rows` rows, and of the `times - 1` times as many that follow."""
    params: dict[str, Any] = {"w_codes": I8, "w_scales": F32, "x_codes": I8, "x_scales": F32}
    params |= {
        "x_corrections": I32,
        "bias": F32,
        "out": F32,
        "k": I64,
        "stride": I64,
        "epilogue": I64,
        "times": I64,
    }
    f = Function(module, f"rows_tile_{rows}_{block}", params)
    w_codes, w_scales, all_codes, all_scales, all_corrections, bias, all_out, k, stride, epilogue, times = (
        f.params
    )
    lanes, tiles, blocks = target.lanes, range(_tiles(target)), k // block
    parts = range(TILE_OUTPUTS // lanes)
    places = [(row, tile, part) for row in range(rows) for tile in tiles for part in parts]

    def output(tile: int, part: int) -> int:
        return tile * TILE_OUTPUTS + part * lanes

    with f.loop(times) as turn:
        first = turn * rows
        x_codes, out = all_codes.offset(first * k), all_out.offset(first * stride)
        x_scales = all_scales.offset(first * blocks)
        corrections = all_corrections.offset(first * blocks)
        starts = {
            (tile, part): bias.load_vector(output(tile, part), lanes) for tile in tiles for part in parts
        }
        totals = {place: f.variable(starts[place[1:]]) for place in places}
        with f.loop(blocks) as number:
            starting = [target.emit_sums(f, corrections[blocks * row + number]) for row in range(rows)]
            sums = {place: f.variable(starting[place[0]]) for place in places}
            codes = [w_codes.offset((k * tile + number * block) * TILE_OUTPUTS) for tile in tiles]
            sources = [x_codes.offset(k * row + number * block) for row in range(rows)]
            with f.loop(block, step=UNROLLED) as i:
                for part in range(0, UNROLLED, 4 * DOT_INPUTS):
                    emit_dot_16(f, target, i + part, codes, sources, sums)
            scales = {
                (tile, part): w_scales.load_vector(
                    (blocks * tile + number) * TILE_OUTPUTS + part * lanes, lanes
                )
                for tile in tiles
                for part in parts
            }
            for row, tile, part in places:
                exact, total = (
                    target.emit_sums_as_float(sums[row, tile, part].value),
                    totals[row, tile, part],
                )
                total.value = exact.fma(scales[tile, part] * x_scales[blocks * row + number], total.value)

        changes: dict[RowsEpilogue, Callable[[Value], Value]] = {
            RowsEpilogue.STORE: lambda value: value,
            RowsEpilogue.ADD: lambda value: value,
            RowsEpilogue.GELU: emit_gelu_erf,
        }
        for kind, change in changes.items():
            with f.if_then(epilogue.equals(kind)):
                # Several vectors at a time hide the time from one instruction to the next.
                for first_place in range(0, len(places), VECTORS_AT_ONCE):
                    group = places[first_place : first_place + VECTORS_AT_ONCE]
                    joined = change(_join([totals[place].value for place in group]))
                    for vector, (row, tile, part) in enumerate(group):
                        at = stride * row + output(tile, part)
                        value = joined.shuffle(range(vector * lanes, (vector + 1) * lanes))
                        out[at] = value + out.load_vector(at, lanes) if kind == RowsEpilogue.ADD else value
    return f.ret()
