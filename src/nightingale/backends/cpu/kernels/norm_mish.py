"""LayerNorm over channels, then Mish: what follows a convolution of the flow's estimator.

    y[c, t] = mish((x[c, t] - mean[t]) / sqrt(variance[t] + epsilon) · weight[c] + bias[c]) + added[c] + residual[c, t]

Shapes
    x, y, residual    (channels, columns) float32; the residual is optional
    added             (channels,) float32            the embedded time, or zeros

Why it is fast: 16 columns of all channels stay in the L1 cache for the mean, the variance and the result, where torch
transposes, normalizes, transposes back and takes seven passes over memory for Mish and the sum. Threads divide
the columns.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.int8_gemm import NORM_EPSILON
from nightingale.backends.cpu.kernels.llvm_builder import F32, I64, Value, Variable
from nightingale.backends.cpu.kernels.thread_pool import Arg, Operation
from nightingale.backends.cpu.kernels.vector_math import LANES, emit_mish

CHANNELS_AT_ONCE: Final = 4
"""Independent results hide the time from one instruction to the next."""


class NormMishOp(Arg):
    X = OUT = WEIGHT = BIAS = ADDED = RESIDUAL = F32
    CHANNELS = X_STRIDE = I64
    """A multiple of CHANNELS_AT_ONCE; floats from one row of x to the next."""
    COLUMNS = I64
    """At least LANES."""
    HAS_RESIDUAL = I64


def emit_norm_mish(module: ir.Module) -> Operation:
    f = Operation(module, "norm_mish")
    op = f.args(NormMishOp)
    count, numbers = op.channels.cast(F32), range(CHANNELS_AT_ONCE)
    begin, end = f.thread_range(op.columns, LANES)
    with f.loop(end, start=begin, step=LANES) as column:
        # The last vector begins earlier, and computes some columns again.
        start = column.min(op.columns - LANES)
        x, out, residual = (pointer.offset(start) for pointer in (op.x, op.out, op.residual))
        sums = [f.variable(f.zeros(F32, LANES)) for _ in numbers]
        with f.loop(op.channels, step=CHANNELS_AT_ONCE) as channel:
            for number, total in enumerate(sums):
                total.value += x.load_vector((channel + number) * op.x_stride, LANES)
        mean = _total(sums) / count
        squares = [f.variable(f.zeros(F32, LANES)) for _ in numbers]
        with f.loop(op.channels, step=CHANNELS_AT_ONCE) as channel:
            for number, total in enumerate(squares):
                centered = x.load_vector((channel + number) * op.x_stride, LANES) - mean
                total.value = centered.fma(centered, total.value)
        variance = _total(squares) / count
        scale = mean.splat(1.0) / (variance + NORM_EPSILON).sqrt()
        with f.loop(op.channels, step=CHANNELS_AT_ONCE) as first:
            for number in numbers:
                channel = first + number
                value = (x.load_vector(channel * op.x_stride, LANES) - mean) * scale
                at, value = channel * op.columns, value.fma(value.splat(op.weight[channel]), op.bias[channel])
                out[at] = emit_mish(value) + op.added[channel]
        with f.if_then(op.has_residual.equals(1)), f.loop(op.channels) as channel:
            at = channel * op.columns
            out[at] = out.load_vector(at, LANES) + residual.load_vector(at, LANES)
    return f.ret()


def _total(variables: list[Variable]) -> Value:
    return reduce(operator.add, (variable.value for variable in variables))
