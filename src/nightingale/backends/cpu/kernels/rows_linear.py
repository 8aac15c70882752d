"""Int8 linear layer or convolution over many rows, with what is before and after it: the flow.

    out = epilogue(norm(x) @ weight.T + bias)          quantization and layout are those of int8_gemm.py
    result = mish(norm(out)) + added                   after a convolution (norm_mish.py)

Shapes
    x     (rows, k) float32        out   (rows, n) float32

Rows of x are frames. A convolution is a product whose inputs are a row and its neighbours: weight is (n, taps · k),
and rows outside x are zeros. Each row is quantized once.

Pseudo-code, for each thread's share of the rows, ROWS_PER_PASS at a time
    for layer in linked layers:
        codes, scales = quantize(norm(x[rows]))
        for tile in some tiles of 16 outputs, for block in blocks of inputs, four rows at a time:
            sums[rows, tile] += gemm(codes[block], tile[block])
            if block is the last: out[rows, tile] = epilogue(sums[rows, tile])

Why it is fast: with many rows a product is bound by its dot products, so everything else is kept away from them.
Rows and one block of some tiles of weights stay in the L1 cache together; 4 rows × 16 outputs are summed in registers
and leave them through the epilogue, straight to `out`; a scale is applied once in 256 inputs where k allows it, which
takes a twentieth of the time of their dot products. Norm, bias, GELU and residual need no pass of their own over
memory, and what linked layers hand to each other stays in the L2 cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.int8_gemm import (
    GROUP_OUTPUTS,
    ROW_PADDING,
    GemmScratch,
    Norm,
    emit_dot_16,
    emit_quantize_row,
)
from nightingale.backends.cpu.kernels.llvm_builder import F32, I8, I32, I64, WORDS, Function, Pointer, Value
from nightingale.backends.cpu.kernels.norm_mish import NormMish
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, TILE_OUTPUTS, Target
from nightingale.backends.cpu.kernels.thread_pool import OP_WORDS, Arg, Operation, load_args
from nightingale.backends.cpu.kernels.vector_math import LANES, emit_gelu_erf

ROWS_PER_PASS: Final = 32
"""Rows that go through linked layers at a time."""
ROWS_BESIDE_WEIGHTS: Final = 16
"""Rows of which a block fits into the L1 cache beside that of some tiles of weights, with their sums."""
MAX_TAPS: Final = 4
LOCAL_PADDING: Final = 16
"""Floats after a row of a thread's own: rows of 4 KiB would all lie in the same place of the L1 cache."""
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


class After(IntEnum):
    """The step after all outputs of a pass are known."""

    NOTHING = 0
    MISH = 1
    MISH_ADD = 2
    """Mish, added to what the result holds."""


class RowsLinearOp(Arg):
    X = NORM_WEIGHT = NORM_BIAS = W_SCALES = BIAS = OUT = F32
    W_CODES = I8
    ROWS = OUTPUTS = K = EPILOGUE = I64
    HAS_NORM = I64
    """1: LayerNorm before the product."""
    LINKS = I64
    """Operations after this one in the table that it computes too, for the same rows; their opcode is LINKED."""
    X_IS_LOCAL = OUT_IS_LOCAL = I64
    """1: the rows of a pass lie at the thread's own place of (threads · ROWS_PER_PASS) rows, LOCAL_PADDING longer."""
    TAPS = PADDING = INPUT_ROWS = I64
    """Output r has the rows r - PADDING … r - PADDING + TAPS of the INPUT_ROWS of x. ROWS counts outputs."""
    AFTER = I64
    """A number of `After`. The next four are for others than NOTHING."""
    RESULT = MISH_WEIGHT = MISH_BIAS = ADDED = F32


def linear_scratch_bytes(k: int, block: int, rows: int = ROWS_PER_PASS + MAX_TAPS - 1) -> int:
    """Return the bytes that a thread needs for rows of k inputs."""
    return GemmScratch.size_bytes(k, block, rows)


class RowsGemm:
    """The functions of a product over many rows: quantize them, then multiply them with a range of the outputs."""

    def __init__(self, module: ir.Module, target: Target, block: int) -> None:
        # On ARM a vector is four registers, so one row alone has independent instructions.
        at_once = ROWS_AT_ONCE if target.lanes == LANES else (1,)
        self._quantize = {
            norm: {rows: emit_quantize_row(module, target, norm, block, rows) for rows in at_once}
            for norm in (Norm.NONE, Norm.LAYER)
        }
        self._kernels = {rows: _emit_tile(module, target, block, rows) for rows in ROWS_AT_ONCE}
        self._target, self._block = target, block

    def scratch(self, start: Pointer, k: Value, rows: int) -> GemmScratch:
        return GemmScratch(start, k, k // self._block, rows)

    def emit_quantize(
        self,
        f: Function,
        op: SimpleNamespace,
        x: Pointer,
        scratch: GemmScratch,
        count: Value,
        *,
        stride: Value,
        norm: bool,
        first: Value,
    ) -> None:
        """Quantize `count` rows at x to those from `first` on, after the LayerNorm of the operation if it has one."""
        done = f.const(0)
        for several, function in self._quantize[Norm.LAYER if norm else Norm.NONE].items():
            end = count // several * several
            with f.loop(end, start=done, step=several) as row:
                given = x.offset(row * stride), op.norm_weight, op.norm_bias, *scratch.row(first + row)
                f.call(function, *given, op.k, stride)
            done = end

    def emit_zeros(
        self, f: Function, k: Value, scratch: GemmScratch, first: Value | int, last: Value
    ) -> None:
        """Set quantized rows to zeros."""
        with f.loop(last, start=first) as row:
            codes, scales, corrections = scratch.row(row)
            with f.loop(k, step=LANES) as at:
                codes[at] = f.zeros(I8, LANES)
            with f.loop(k // self._block) as number:
                scales[number], corrections[number] = f.const(0.0, F32), f.const(0, I32)

    def emit_multiply(
        self,
        f: Function,
        op: SimpleNamespace,
        scratch: GemmScratch,
        out: Pointer,
        *,
        count: Value,
        outputs: tuple[Value, Value],
        stride: Value,
        epilogue: Value,
        taps: Value,
    ) -> None:
        """Write outputs from the first to before the last of `count` rows to out, (count, stride)."""
        first, last = outputs
        blocks = op.k // self._block * taps
        with f.loop(last, start=first, step=_tiles(self._target) * TILE_OUTPUTS) as output:
            weights = op.w_codes.offset(output * op.k * taps), op.w_scales.offset(output * blocks)
            bias, place = op.bias.offset(output), out.offset(output - first)
            with f.loop(blocks) as number, f.loop(count, step=ROWS_BESIDE_WEIGHTS) as row:
                end = (row + ROWS_BESIDE_WEIGHTS).min(count)
                for several, kernel in self._kernels.items():
                    times = (end - row) // several
                    sums = scratch.product.offset(row * GROUP_OUTPUTS), place.offset(row * stride)
                    rest = op.k, taps, number, stride, epilogue, times
                    f.call(kernel, *weights, *scratch.row(row), bias, *sums, *rest)
                    row = row + times * several


def emit_rows_linear(module: ir.Module, gemm: RowsGemm, norm_mish: NormMish, block: int) -> Operation:
    one_pass = _emit_pass(module, gemm, norm_mish, block)
    f = Operation(module, f"rows_linear_{block}")
    op = f.args(RowsLinearOp)
    begin, end = f.thread_range(op.rows, ROWS_AT_ONCE[0])
    with f.loop(end, start=begin, step=ROWS_PER_PASS) as first, f.loop(op.links + 1) as link:
        count = (first + ROWS_PER_PASS).min(end) - first
        f.call(one_pass, f.op.offset(link * OP_WORDS), f.scratch, f.thread, first, count)
    return f.ret()


def _emit_pass(module: ir.Module, gemm: RowsGemm, norm_mish: NormMish, block: int) -> Function:
    """Emit the product of ROWS_PER_PASS rows or fewer."""
    params = {"op": WORDS, "scratch": I32, "thread": I64, "first": I64, "count": I64}
    f = Function(module, f"rows_pass_{block}", params)
    words, start, thread, first, count = f.params
    op = load_args(f, RowsLinearOp, words)
    scratch = gemm.scratch(start, op.k, ROWS_PER_PASS + MAX_TAPS - 1)
    x_stride, out_stride = op.k + op.x_is_local * LOCAL_PADDING, op.outputs + op.out_is_local * LOCAL_PADDING
    # The rows that are read: those before x, those of x, those after it.
    begin, read = first - op.padding, count + op.taps - 1
    before = (f.const(0) - begin).max(0)
    known = (begin + read).min(op.input_rows) - begin - before
    own = thread * ROWS_PER_PASS
    x = op.x.offset(op.x_is_local.equals(1).select(own, begin + before) * x_stride)
    out = op.out.offset(op.out_is_local.equals(1).select(own, first) * out_stride)
    gemm.emit_zeros(f, op.k, scratch, 0, before)
    gemm.emit_zeros(f, op.k, scratch, before + known, read)
    with f.if_else(op.has_norm.equals(1)) as (with_norm, without):
        for branch, norm in ((with_norm, True), (without, False)):
            with branch:
                gemm.emit_quantize(f, op, x, scratch, known, stride=x_stride, norm=norm, first=before)
    whole, epilogue = (f.const(0), op.outputs), op.epilogue
    gemm.emit_multiply(
        f, op, scratch, out, count=count, outputs=whole, stride=out_stride, epilogue=epilogue, taps=op.taps
    )
    with f.if_then(op.after > 0):
        norm_mish.emit_call(f, op, out, out_stride, op.result.offset(first * op.outputs), count)
    return f.ret()


def _tiles(target: Target) -> int:
    return target.gemm_tiles(ROWS_AT_ONCE[0])


def _join(values: Sequence[Value]) -> Value:
    """Return the lanes of all values in one vector; their number is a power of two."""
    while len(values) > 1:
        values = [first.join(second) for first, second in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _emit_tile(module: ir.Module, target: Target, block: int, rows: int) -> Function:
    """Emit one block of inputs of some tiles of outputs, for `rows` rows and the `times - 1` times as many that follow.

    Sums of the blocks before it are in `product` (rows, GROUP_OUTPUTS). After the last block they go through the
    epilogue to `out`, whose rows are `stride` apart.
    """
    params: dict[str, Any] = {
        "w_codes": I8,
        "w_scales": F32,
        "x_codes": I8,
        "x_scales": F32,
        "x_corrections": I32,
    }
    params |= {
        "bias": F32,
        "product": F32,
        "out": F32,
        "k": I64,
        "taps": I64,
        "number": I64,
        "stride": I64,
        "epilogue": I64,
    }
    f = Function(module, f"rows_tile_{rows}_{block}", {**params, "times": I64})
    w_codes, w_scales, all_codes, all_scales, all_corrections, bias, product = f.params[:7]
    all_out, k, taps, number, stride, epilogue, times = f.params[7:]
    lanes, tiles, blocks = target.lanes, range(_tiles(target)), k // block
    all_blocks, place_in_rows = blocks * taps, number * block + number // blocks * ROW_PADDING
    parts = range(TILE_OUTPUTS // lanes)
    places = [(row, tile, part) for row in range(rows) for tile in tiles for part in parts]

    def output(tile: int, part: int) -> int:
        return tile * TILE_OUTPUTS + part * lanes

    def sums_so_far(row: Value, tile: int, part: int) -> Pointer:
        place: Pointer = product.offset(row * GROUP_OUTPUTS + output(tile, part))
        return place

    codes = [w_codes.offset((k * taps * tile + number * block) * TILE_OUTPUTS) for tile in tiles]
    with f.loop(times) as turn:
        first = turn * rows
        x_codes = all_codes.offset(first * (k + ROW_PADDING) + place_in_rows)
        out = all_out.offset(first * stride)
        x_scales = all_scales.offset(first * blocks + number)
        corrections = all_corrections.offset(first * blocks + number)
        starting = [target.emit_sums(f, corrections[blocks * row]) for row in range(rows)]
        sums = {place: f.variable(starting[place[0]]) for place in places}
        sources = [x_codes.offset((k + ROW_PADDING) * row) for row in range(rows)]
        with f.loop(block, step=UNROLLED) as i:
            for part in range(0, UNROLLED, 4 * DOT_INPUTS):
                emit_dot_16(f, target, i + part, codes, sources, sums)
        # Of the first block, every row begins with the same bias.
        is_first = number.equals(0)
        totals = {}
        for row, tile, part in places:
            at = output(tile, part)
            w_scale = w_scales.load_vector((all_blocks * tile + number) * TILE_OUTPUTS + part * lanes, lanes)
            exact = target.emit_sums_as_float(sums[row, tile, part].value)
            before = is_first.select_pointer(bias.offset(at), sums_so_far(first + row, tile, part))
            totals[row, tile, part] = exact.fma(
                w_scale * x_scales[blocks * row], before.load_vector(0, lanes)
            )
        with f.if_then(number + 1 < all_blocks):
            for row, tile, part in places:
                sums_so_far(first + row, tile, part)[0] = totals[row, tile, part]

        is_last = (number + 1).equals(all_blocks)
        changes: dict[RowsEpilogue, Callable[[Value], Value]] = {
            RowsEpilogue.STORE: lambda value: value,
            RowsEpilogue.ADD: lambda value: value,
            RowsEpilogue.GELU: emit_gelu_erf,
        }
        for kind, change in changes.items():
            with f.if_then(is_last.select(epilogue, -1).equals(kind)):
                # Several vectors at a time hide the time from one instruction to the next.
                for first_place in range(0, len(places), VECTORS_AT_ONCE):
                    group = places[first_place : first_place + VECTORS_AT_ONCE]
                    joined = change(_join([totals[place] for place in group]))
                    for vector, (row, tile, part) in enumerate(group):
                        at = stride * row + output(tile, part)
                        value = joined.shuffle(range(vector * lanes, (vector + 1) * lanes))
                        out[at] = value + out.load_vector(at, lanes) if kind == RowsEpilogue.ADD else value
    return f.ret()
