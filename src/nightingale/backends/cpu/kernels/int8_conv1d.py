"""Int8 one-dimensional convolution: the token encoder, the flow's estimator and the vocoder.

    y[o, t] = bias[o] + Σ_tap Σ_b x_scale[b, t'] · w_scale[o, tap, b] · Σ_{c in block b} x_code[c, t'] · w_code[o, tap, c]
              with t' = t + tap · dilation; the input is padded by the caller

Shapes and layout (blocks = channels / block; `length` columns in, `columns` columns out)
    x              (channels, length) float32
    x_codes        (channels / 4, length, 4) int8       four channels of a column side by side
    x_scales       (blocks, length) float32             one scale per column and block
    w_codes        (outputs / 4, taps, blocks, block / 4, 4, 4) int8   4 outputs × 4 channels are 16 bytes
    w_scales       (outputs / 4, taps, blocks, 4) float32
    w_corrections  the same, int32                      -ZERO_POINT · Σ w_code, where inputs are unsigned
    y              (outputs, columns) float32

Pseudo-code of a tile, 16 columns of 4 outputs
    for tap in taps, block in blocks:
        sums[output, :] = 0                                            # int32 registers
        for four channels of the block:
            sums[output, :] += dot4(x_codes[channels, t + tap · dilation :][:16], broadcast(w_codes[output]))
        y[output, :] += float(sums[output, :]) · x_scales[block, :] · w_scales[output]

Why it is fast: time lies in the lanes, so a tap is the same memory some bytes further on; no column matrix
is built and nothing is transposed before or after. A thread takes COLUMNS_PER_PASS columns through all
outputs while their codes stay in its cache.
"""

from __future__ import annotations

from typing import Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.llvm_builder import F32, I8, I32, I64, Function, Pointer, Variable
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, Target
from nightingale.backends.cpu.kernels.thread_pool import OpArg, Operation
from nightingale.backends.cpu.kernels.vector_math import LANES
from nightingale.backends.shared.quantize import INT8_MAX, ZERO_POINT

CONV_OUTPUTS: Final = 4
"""Outputs of a tile: as many as have their weights in one vector of 16 bytes."""
COLUMNS_PER_PASS: Final = 4 * LANES


class QuantizeColumnsOp(OpArg):
    X = F32
    X_CODES = I8
    X_SCALES = F32
    LENGTH = I64
    CHANNELS = I64
    BLOCK = I64


class Conv1dOp(OpArg):
    X_CODES = I8
    X_SCALES = F32
    W_CODES = I8
    W_SCALES = F32
    W_CORRECTIONS = I32
    BIAS = F32
    OUT = F32
    LENGTH = I64
    CHANNELS = I64
    BLOCK = I64
    COLUMNS = I64
    OUTPUTS = I64
    TAPS = I64
    DILATION = I64


def emit_quantize_columns(module: ir.Module, target: Target) -> Operation:
    """Emit the operation that quantizes x, by columns."""
    kernel = _emit_quantize_columns(module, target)
    f = Operation(module, "quantize_columns")
    x, codes, scales = (
        f.arg_pointer(name)
        for name in (QuantizeColumnsOp.X, QuantizeColumnsOp.X_CODES, QuantizeColumnsOp.X_SCALES)
    )
    length = f.arg(QuantizeColumnsOp.LENGTH)
    begin, end = f.thread_range(length, LANES)
    with f.loop(end, start=begin, step=LANES) as column:
        # The last vector begins earlier, and computes some columns again.
        start = column.min(length - LANES)
        f.call(
            kernel, x.offset(start), codes.offset(start * DOT_INPUTS), scales.offset(start),
            length, f.arg(QuantizeColumnsOp.CHANNELS), f.arg(QuantizeColumnsOp.BLOCK),
        )  # fmt: skip
    f.ret()
    return f


def _emit_quantize_columns(module: ir.Module, target: Target) -> Function:
    """Emit the quantization of LANES columns."""
    arrays, sizes = {"x": F32, "codes": I8, "scales": F32}, ("length", "channels", "block")
    f = Function(module, "quantize_16_columns", {**arrays, **dict.fromkeys(sizes, I64)})
    x, length, block = f.pointer("x"), f["length"], f["block"]
    with f.loop(f["channels"] // block) as number:
        first = number * block
        magnitude = f.variable(f.zeros(F32, LANES))
        with f.loop(first + block, start=first) as channel:
            magnitude.value = magnitude.value.max(x.load_vector(channel * length, LANES).abs())
        scale = magnitude.value / INT8_MAX
        f.pointer("scales")[number * length] = scale
        # A column of zeros has the scale 0 and the codes 0.
        scale = (scale > 0.0).select(scale, 1.0)
        with f.loop(first + block, start=first, step=DOT_INPUTS) as channel:
            packed = f.zeros(I32, LANES)
            for place in range(DOT_INPUTS):
                value = x.load_vector((channel + place) * length, LANES)
                code = (value / scale).round().cast(I32)
                byte = (code if target.signed_weights else code + ZERO_POINT) & 255
                packed = packed + byte * (1 << (8 * place))
            f.pointer("codes").offset(channel * length).cast(I32)[0] = packed
    f.ret()
    return f


def emit_conv1d(module: ir.Module, target: Target) -> Operation:
    """Emit the operation that convolves quantized columns."""
    tile = _emit_tile(module, target)
    f = Operation(module, "conv1d")
    pointers = (name for name in Conv1dOp if name.element != I64)
    codes, x_scales, weights, w_scales, corrections, bias, out = map(f.arg_pointer, pointers)
    columns, block, taps = f.arg(Conv1dOp.COLUMNS), f.arg(Conv1dOp.BLOCK), f.arg(Conv1dOp.TAPS)
    blocks = f.arg(Conv1dOp.CHANNELS) // block
    places = taps * blocks
    begin, end = f.thread_range(columns, COLUMNS_PER_PASS)
    with (
        f.loop(end, start=begin, step=COLUMNS_PER_PASS) as first,
        f.loop(f.arg(Conv1dOp.OUTPUTS), step=CONV_OUTPUTS) as output,
        f.loop((first + COLUMNS_PER_PASS).min(end), start=first, step=LANES) as column,
    ):
        start = column.min(columns - LANES)
        f.call(
            tile, codes.offset(start * DOT_INPUTS), x_scales.offset(start),
            weights.offset(output * places * block), w_scales.offset(output * places),
            corrections.offset(output * places), bias.offset(output),
            out.offset(output * columns + start),
            f.arg(Conv1dOp.LENGTH), blocks, block, taps, f.arg(Conv1dOp.DILATION), columns,
        )  # fmt: skip
    f.ret()
    return f


def _emit_tile(module: ir.Module, target: Target) -> Function:
    """Emit LANES columns of CONV_OUTPUTS outputs."""
    arrays = {
        "x_codes": I8, "x_scales": F32, "w_codes": I8, "w_scales": F32, "corrections": I32, "bias": F32, "out": F32
    }  # fmt: skip
    sizes = ("length", "blocks", "block", "taps", "dilation", "stride")
    f = Function(module, "conv1d_tile", {**arrays, **dict.fromkeys(sizes, I64)})
    x_codes, w_codes, length, block = f.pointer("x_codes"), f.pointer("w_codes"), f["length"], f["block"]
    parts, outputs = range(LANES // target.lanes), range(CONV_OUTPUTS)
    totals = {
        (output, part): f.variable(f.zeros(F32, target.lanes) + f.pointer("bias")[output])
        for output in outputs
        for part in parts
    }
    with f.loop(f["taps"]) as tap, f.loop(f["blocks"]) as number:
        sums = {place: f.variable(f.zeros(I32, target.lanes)) for place in totals}
        shift, place = tap * f["dilation"], tap * f["blocks"] + number
        weights = w_codes.offset(place * block * CONV_OUTPUTS)
        inputs = x_codes.offset((number * block // DOT_INPUTS * length + shift) * DOT_INPUTS)
        with f.loop(block // DOT_INPUTS) as four:
            _emit_four_channels(
                f, target, inputs.offset(four * length * DOT_INPUTS), weights.offset(four * 16), sums
            )
        for part in parts:
            at = number * length + shift + part * target.lanes
            x_scale = f.pointer("x_scales").load_vector(at, target.lanes)
            for output in outputs:
                exact = sums[output, part].value
                if not target.signed_weights:
                    exact = exact + f.pointer("corrections")[place * CONV_OUTPUTS + output]
                scale = x_scale * f.pointer("w_scales")[place * CONV_OUTPUTS + output]
                totals[output, part].value = exact.cast(F32).fma(scale, totals[output, part].value)
    for (output, part), total in totals.items():
        f.pointer("out")[f["stride"] * output + part * target.lanes] = total.value
    f.ret()
    return f


def _emit_four_channels(
    f: Function, target: Target, inputs: Pointer, weights: Pointer, sums: dict[tuple[int, int], Variable]
) -> None:
    width = target.lanes * DOT_INPUTS
    broadcasts = list(target.emit_broadcasts(f, weights))
    for part in range(LANES // target.lanes):
        columns = inputs.load_vector(part * width, width)
        for output, own in enumerate(broadcasts):
            total = sums[output, part]
            total.value = target.emit_dot(f, total.value, columns, own)
