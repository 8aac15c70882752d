"""Int8 one-dimensional convolution: the token encoder, the flow's estimator and the vocoder.

    y[o, t] = bias[o] + Σ_{k, b} x_scale[b, u] · w_scale[o, k, b] · Σ_{c in b} x_code[c, u] · w_code[o, k, c]
              + residual[o, t], over taps k and blocks b, with u = t + k · dilation; x goes through Snake and is padded,
              and both Snake and the residual are optional

Shapes and layout (blocks = channels / block; `length` columns in, `columns` columns out)
    x              (channels, columns) float32          zeros are added on both sides, up to `length`
    x_codes        (channels / 4, length, 4) int8       four channels of a column side by side
    x_scales       (blocks, length) float32             one scale per column and block
    w_codes        (outputs / 4, taps, blocks, block / 4, 4, 4) int8   4 outputs × 4 channels are 16 bytes
    w_scales       (outputs / 4, taps, blocks, 4) float32
    w_corrections  the same, int32                      -ZERO_POINT · Σ w_code, where inputs are unsigned
    y              (outputs, columns) float32

Pseudo-code: two operations, with a barrier between them
    quantize_columns:  x_codes, x_scales = quantize(snake(x))              # by 16 columns
    conv1d:            for each tile of 16 or 48 columns and 4 outputs:
        for tap in taps, block in blocks:
            sums[output, :] = 0                                            # int32 registers
            for four channels of the block:
                sums[output, :] += dot4(x_codes[channels, t + tap · dilation :][tile], w_codes[output])
            y[output, :] += float(sums[output, :]) · x_scales[block, :] · w_scales[output]

Why it is fast: time lies in the lanes, so a tap is the same memory some bytes further on; no column matrix
is built and nothing is transposed before or after. A thread takes TILES_PER_PASS tiles of columns through all
outputs while their codes stay in its cache. Padding, activation and residual need no pass of their own.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.int8_gemm import emit_quantization_factor
from nightingale.backends.cpu.kernels.llvm_builder import F32, I8, I32, I64, Function, Pointer, Value
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, Target
from nightingale.backends.cpu.kernels.thread_pool import Arg, Operation
from nightingale.backends.cpu.kernels.vector_math import LANES, emit_nearest_int, emit_sin_squared
from nightingale.backends.shared.int8_blocks import INT8_MAX, ZERO_POINT

CONV_OUTPUTS: Final = 4
"""Outputs of a tile: as many as have their weights in one vector of 16 bytes."""
TILES_PER_PASS: Final = 4
"""Tiles of columns that a thread takes through all outputs."""
CHANNELS_AT_ONCE: Final = 2
"""Independent results of Snake hide the time from one instruction to the next."""
PREFETCH_COLUMNS: Final = 3 * LANES
FOURS_AT_ONCE: Final = 4
"""Groups of four channels of one iteration; a block has at least so many."""


class Conv1dOp(Arg):
    """Arguments of both operations."""

    X = ALPHA = INVERSE_ALPHA = X_SCALES = W_SCALES = BIAS = RESIDUAL = OUT = F32
    X_CODES = W_CODES = I8
    W_CORRECTIONS = I32
    X_STRIDE = INPUT_COLUMNS = LEFT = LENGTH = CHANNELS = BLOCK = COLUMNS = OUTPUTS = TAPS = DILATION = I64
    """x has INPUT_COLUMNS columns, in rows that are X_STRIDE apart, after LEFT zeros and before the rest of LENGTH."""
    HAS_SNAKE = HAS_RESIDUAL = I64


def padded_length(columns: int) -> int:
    """Return the columns of an odd number of vectors, so that rows fall into different places of the cache."""
    return ((columns + LANES - 1) // LANES | 1) * LANES


def scratch_bytes(channels: int) -> int:
    """Return the bytes that a thread needs for the columns that it quantizes."""
    return 4 * LANES * channels


def emit_quantize_columns(module: ir.Module, target: Target) -> Operation:
    f = Operation(module, "quantize_columns")
    op = f.args(Conv1dOp)
    length, block, values = op.length, op.block, f.scratch.cast(F32)
    begin, end = f.thread_range(length, LANES)
    with f.loop(end, start=begin, step=LANES) as column:
        # The last vector begins earlier, and computes some columns again.
        start = column.min(length - LANES)
        _emit_load_columns(f, op, values, start)
        with f.loop(op.channels // block) as number:
            first = number * block
            magnitude = f.variable(f.zeros(F32, LANES))
            with f.loop(first + block, start=first, step=DOT_INPUTS) as channel:
                parts = [values.load_vector((channel + place) * LANES, LANES) for place in range(DOT_INPUTS)]
                magnitude.value = magnitude.value.max(reduce(Value.max, (part.abs() for part in parts)))
            op.x_scales[number * length + start] = magnitude.value * (1 / INT8_MAX)
            factor = emit_quantization_factor(magnitude.value)
            with f.loop(first + block, start=first, step=DOT_INPUTS) as channel:
                packed = f.zeros(I32, LANES)
                for place in range(DOT_INPUTS):
                    code = emit_nearest_int(values.load_vector((channel + place) * LANES, LANES), factor)
                    byte = (code if target.signed_weights else code + ZERO_POINT) & 255
                    packed = packed + byte * (1 << (8 * place))
                op.x_codes.offset(channel * length + start * DOT_INPUTS).cast(I32)[0] = packed
    return f.ret()


def _emit_load_columns(f: Function, op: Any, values: Pointer, start: Value) -> None:
    """Write LANES columns of all channels to `values`, through Snake if there is one; beside x there are zeros."""
    at = start - op.left
    inside = (at >= 0).select((op.input_columns >= at + LANES).select(f.const(1), 0), 0)

    with f.if_else(inside.equals(1)) as (whole, edge):
        with whole, f.loop(op.channels) as channel:
            x = op.x.offset(channel * op.x_stride + at)
            x.prefetch(PREFETCH_COLUMNS)
            values[channel * LANES] = x.load_vector(0, LANES)
        with edge, f.loop(op.channels) as channel:
            values[channel * LANES] = f.zeros(F32, LANES)
            with f.loop(f.const(LANES).min(op.input_columns - at), start=(op.left - start).max(0)) as lane:
                values[channel * LANES + lane] = op.x[channel * op.x_stride + at + lane]
    # Not while x is loaded: so many instructions would keep a core from waiting for several lines at a time.
    with f.if_then(op.has_snake.equals(1)), f.loop(op.channels, step=CHANNELS_AT_ONCE) as channel:
        channels = [channel + number for number in range(CHANNELS_AT_ONCE)]
        value = values.load_vector(channel * LANES, CHANNELS_AT_ONCE * LANES)
        alpha = _join([f.splat(op.alpha[own], LANES) for own in channels])
        inverse = _join([f.splat(op.inverse_alpha[own], LANES) for own in channels])
        values[channel * LANES] = emit_sin_squared(value * alpha).fma(inverse, value)


def _join(values: list[Value]) -> Value:
    return reduce(Value.join, values)


def emit_conv1d(module: ir.Module, target: Target) -> Operation:
    tile = _emit_tile(module, target)
    f = Operation(module, "conv1d")
    op = f.args(Conv1dOp)
    blocks = op.channels // op.block
    columns_per_pass = TILES_PER_PASS * target.conv_columns
    begin, end = f.thread_range(op.columns, columns_per_pass)
    with (
        f.loop(end, start=begin, step=columns_per_pass) as first,
        f.loop(op.outputs, step=CONV_OUTPUTS) as output,
        f.loop((first + columns_per_pass).min(end), start=first, step=target.conv_columns) as column,
    ):
        start, at = column.min(op.columns - target.conv_columns), output * (op.taps * blocks)
        f.call(
            tile, op.x_codes.offset(start * DOT_INPUTS), op.x_scales.offset(start),
            op.w_codes.offset(at * op.block), op.w_scales.offset(at), op.w_corrections.offset(at),
            op.bias.offset(output), op.out.offset(output * op.columns + start),
            op.residual.offset(output * op.columns + start),
            op.length, blocks, op.block, op.taps, op.dilation, op.columns, op.has_residual,
        )  # fmt: skip
    return f.ret()


def _emit_tile(module: ir.Module, target: Target) -> Function:
    """Emit `target.conv_columns` columns of CONV_OUTPUTS outputs."""
    x = {"x_codes": I8, "x_scales": F32}
    w = {"w_codes": I8, "w_scales": F32, "corrections": I32, "bias": F32}
    sizes = dict.fromkeys(("length", "blocks", "block", "taps", "dilation", "stride", "has_residual"), I64)
    f = Function(module, "conv1d_tile", {**x, **w, "out": F32, "residual": F32, **sizes})
    (
        x_codes, x_scales, w_codes, w_scales, corrections, bias, out, residual,
        length, blocks, block, taps, dilation, stride, has_residual,
    ) = f.params  # fmt: skip
    lanes, outputs = target.lanes, range(CONV_OUTPUTS)
    parts, width = range(target.conv_columns // lanes), lanes * DOT_INPUTS
    places = [(output, part) for output in outputs for part in parts]
    totals = {place: f.variable(f.zeros(F32, lanes) + bias[place[0]]) for place in places}
    with f.loop(taps) as tap, f.loop(blocks) as number:
        shift, at = tap * dilation, tap * blocks + number
        starts = [target.emit_sums(f, corrections[at * CONV_OUTPUTS + output]) for output in outputs]
        sums = {(output, part): f.variable(starts[output]) for output, part in places}
        weights = w_codes.offset(at * block * CONV_OUTPUTS)
        inputs = x_codes.offset((number * block // DOT_INPUTS * length + shift) * DOT_INPUTS)
        with f.loop(block // DOT_INPUTS, step=FOURS_AT_ONCE) as first:
            for four in range(FOURS_AT_ONCE):
                columns = inputs.offset((first + four) * length * DOT_INPUTS)
                broadcasts = list(target.emit_broadcasts(f, weights.offset((first + four) * 16)))
                for part in parts:
                    loaded = columns.load_vector(part * width, width)
                    for output, own in enumerate(broadcasts):
                        total = sums[output, part]
                        total.value = target.emit_dot(f, total.value, loaded, own)
        for part in parts:
            x_scale = x_scales.load_vector(number * length + shift + part * lanes, lanes)
            for output in outputs:
                exact, total = target.emit_sums_as_float(sums[output, part].value), totals[output, part]
                total.value = exact.fma(x_scale * w_scales[at * CONV_OUTPUTS + output], total.value)
    with f.if_else(has_residual.equals(1)) as (add, store):
        for branch in (add, store):
            with branch:
                for (output, part), total in totals.items():
                    at, value = stride * output + part * lanes, total.value
                    out[at] = value + residual.load_vector(at, lanes) if branch is add else value
    return f.ret()
