"""Int8 one-dimensional convolution: the token encoder, the flow's estimator and the vocoder.

    y[o, t] = bias[o] + Σ_{k, b} x_scale[b, u] · w_scale[o, k, b] · Σ_{c in b} x_code[c, u] · w_code[o, k, c]
              over taps k and blocks b, with u = t + k · dilation; the caller pads the input

Shapes and layout (blocks = channels / block; `length` columns in, `columns` columns out)
    x              (channels, length) float32
    x_codes        (channels / 4, length, 4) int8       four channels of a column side by side
    x_scales       (blocks, length) float32             one scale per column and block
    w_codes        (outputs / 4, taps, blocks, block / 4, 4, 4) int8   4 outputs × 4 channels are 16 bytes
    w_scales       (outputs / 4, taps, blocks, 4) float32
    w_corrections  the same, int32                      -ZERO_POINT · Σ w_code, where inputs are unsigned
    y              (outputs, columns) float32

Pseudo-code: two operations, with a barrier between them
    quantize_columns:  x_codes, x_scales = quantize(x)                     # by 16 columns
    conv1d:            for each tile of 16 columns and 4 outputs:
        for tap in taps, block in blocks:
            sums[output, :] = 0                                            # int32 registers
            for four channels of the block:
                sums[output, :] += dot4(x_codes[channels, t + tap · dilation :][:16], w_codes[output])
            y[output, :] += float(sums[output, :]) · x_scales[block, :] · w_scales[output]

Why it is fast: time lies in the lanes, so a tap is the same memory some bytes further on; no column matrix
is built and nothing is transposed before or after. A thread takes COLUMNS_PER_PASS columns through all
outputs while their codes stay in its cache.
"""

from __future__ import annotations

from typing import Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.llvm_builder import F32, I8, I32, I64, Function
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, Target
from nightingale.backends.cpu.kernels.thread_pool import Arg, Operation
from nightingale.backends.cpu.kernels.vector_math import LANES
from nightingale.backends.shared.int8_blocks import INT8_MAX, ZERO_POINT

CONV_OUTPUTS: Final = 4
"""Outputs of a tile: as many as have their weights in one vector of 16 bytes."""
COLUMNS_PER_PASS: Final = 4 * LANES


class Conv1dOp(Arg):
    """Arguments of both operations."""

    X = X_SCALES = W_SCALES = BIAS = OUT = F32
    X_CODES = W_CODES = I8
    W_CORRECTIONS = I32
    LENGTH = CHANNELS = BLOCK = COLUMNS = OUTPUTS = TAPS = DILATION = I64


def emit_quantize_columns(module: ir.Module, target: Target) -> Operation:
    f = Operation(module, "quantize_columns")
    op = f.args(Conv1dOp)
    length, block = op.length, op.block
    begin, end = f.thread_range(length, LANES)
    with f.loop(end, start=begin, step=LANES) as column, f.loop(op.channels // block) as number:
        # The last vector begins earlier, and computes some columns again.
        start, first = column.min(length - LANES), number * block
        x = op.x.offset(start)
        magnitude = f.variable(f.zeros(F32, LANES))
        with f.loop(first + block, start=first) as channel:
            magnitude.value = magnitude.value.max(x.load_vector(channel * length, LANES).abs())
        scale = magnitude.value / INT8_MAX
        op.x_scales[number * length + start] = scale
        # A column of zeros has the scale 0 and the codes 0.
        divisor = (scale > 0.0).select(scale, 1.0)
        with f.loop(first + block, start=first, step=DOT_INPUTS) as channel:
            packed = f.zeros(I32, LANES)
            for place in range(DOT_INPUTS):
                code = (x.load_vector((channel + place) * length, LANES) / divisor).round().cast(I32)
                byte = (code if target.signed_weights else code + ZERO_POINT) & 255
                packed = packed + byte * (1 << (8 * place))
            op.x_codes.offset(channel * length + start * DOT_INPUTS).cast(I32)[0] = packed
    return f.ret()


def emit_conv1d(module: ir.Module, target: Target) -> Operation:
    tile = _emit_tile(module, target)
    f = Operation(module, "conv1d")
    op = f.args(Conv1dOp)
    blocks = op.channels // op.block
    begin, end = f.thread_range(op.columns, COLUMNS_PER_PASS)
    with (
        f.loop(end, start=begin, step=COLUMNS_PER_PASS) as first,
        f.loop(op.outputs, step=CONV_OUTPUTS) as output,
        f.loop((first + COLUMNS_PER_PASS).min(end), start=first, step=LANES) as column,
    ):
        start, at = column.min(op.columns - LANES), output * (op.taps * blocks)
        f.call(
            tile, op.x_codes.offset(start * DOT_INPUTS), op.x_scales.offset(start),
            op.w_codes.offset(at * op.block), op.w_scales.offset(at), op.w_corrections.offset(at),
            op.bias.offset(output), op.out.offset(output * op.columns + start),
            op.length, blocks, op.block, op.taps, op.dilation, op.columns,
        )  # fmt: skip
    return f.ret()


def _emit_tile(module: ir.Module, target: Target) -> Function:
    """Emit LANES columns of CONV_OUTPUTS outputs."""
    x = {"x_codes": I8, "x_scales": F32}
    w = {"w_codes": I8, "w_scales": F32, "corrections": I32, "bias": F32}
    sizes = dict.fromkeys(("length", "blocks", "block", "taps", "dilation", "stride"), I64)
    f = Function(module, "conv1d_tile", {**x, **w, "out": F32, **sizes})
    (
        x_codes, x_scales, w_codes, w_scales, corrections, bias, out,
        length, blocks, block, taps, dilation, stride,
    ) = f.params  # fmt: skip
    lanes, outputs = target.lanes, range(CONV_OUTPUTS)
    parts, width = range(LANES // lanes), lanes * DOT_INPUTS
    places = [(output, part) for output in outputs for part in parts]
    totals = {place: f.variable(f.zeros(F32, lanes) + bias[place[0]]) for place in places}
    with f.loop(taps) as tap, f.loop(blocks) as number:
        sums = {place: f.variable(f.zeros(I32, lanes)) for place in places}
        shift, at = tap * dilation, tap * blocks + number
        weights = w_codes.offset(at * block * CONV_OUTPUTS)
        inputs = x_codes.offset((number * block // DOT_INPUTS * length + shift) * DOT_INPUTS)
        with f.loop(block // DOT_INPUTS) as four:
            columns = inputs.offset(four * length * DOT_INPUTS)
            broadcasts = list(target.emit_broadcasts(f, weights.offset(four * 16)))
            for part in parts:
                loaded = columns.load_vector(part * width, width)
                for output, own in enumerate(broadcasts):
                    total = sums[output, part]
                    total.value = target.emit_dot(f, total.value, loaded, own)
        for part in parts:
            x_scale = x_scales.load_vector(number * length + shift + part * lanes, lanes)
            for output in outputs:
                exact, total = sums[output, part].value, totals[output, part]
                if not target.signed_weights:
                    exact = exact + corrections[at * CONV_OUTPUTS + output]
                scale = x_scale * w_scales[at * CONV_OUTPUTS + output]
                total.value = exact.cast(F32).fma(scale, total.value)
    for (output, part), total in totals.items():
        out[stride * output + part * lanes] = total.value
    return f.ret()
