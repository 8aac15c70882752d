"""LayerNorm over the channels of a row, then Mish: what follows a convolution of the flow's estimator.

    result = mish((x - mean) / sqrt(variance + epsilon) · weight + bias) + added          (+ result)

Shapes
    x, result     (rows, n) float32; rows of x are `stride` apart
    added         (n,) float32                    the embedded time, or zeros

Why it is fast: rows are still in a cache after their product (rows_linear.py), where torch takes a dozen passes over
memory. On AVX-512 the instructions of four rows alternate, because those of one row wait for each other.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.int8_gemm import NORM_EPSILON
from nightingale.backends.cpu.kernels.llvm_builder import F32, I64, Function, Pointer, Value
from nightingale.backends.cpu.kernels.target import Target
from nightingale.backends.cpu.kernels.vector_math import LANES, emit_mish

ROWS_AT_ONCE: Final = (4, 1)


class NormMish:
    """Functions for several rows, and for one."""

    def __init__(self, module: ir.Module, target: Target) -> None:
        at_once = ROWS_AT_ONCE if target.lanes == LANES else (1,)
        self._functions = {rows: _emit_norm_mish(module, rows) for rows in at_once}

    def emit_call(
        self, f: Function, op: SimpleNamespace, x: Pointer, stride: Value, result: Pointer, count: Value
    ) -> None:
        """Write `count` rows of x to the result, with the arguments of rows_linear's operation."""
        done = f.const(0)
        for several, function in self._functions.items():
            end = count // several * several
            with f.loop(end, start=done, step=several) as row:
                given = x.offset(row * stride), stride, op.mish_weight, op.mish_bias, op.added
                f.call(function, *given, result.offset(row * op.outputs), op.outputs, op.after)
            done = end


def _emit_norm_mish(module: ir.Module, rows: int) -> Function:
    """after: 2 to add to what the result holds."""
    params = {"x": F32, "stride": I64, "weight": F32, "bias": F32, "added": F32, "result": F32}
    f = Function(module, f"norm_mish_{rows}", {**params, "n": I64, "after": I64})
    x, stride, weight, bias, added, result, n, after = f.params
    xs = [x.offset(stride * row) for row in range(rows)]
    count = n.cast(F32)
    totals = f.variables(rows, f.zeros(F32, LANES))
    with f.loop(n, step=LANES) as i:
        for own, total in zip(xs, totals, strict=True):
            total.value += own.load_vector(i, LANES)
    means = [total.value.reduce_sum() / count for total in totals]
    squares = f.variables(rows, f.zeros(F32, LANES))
    with f.loop(n, step=LANES) as i:
        for own, mean, square in zip(xs, means, squares, strict=True):
            centered = own.load_vector(i, LANES) - mean
            square.value = centered.fma(centered, square.value)
    scales = [
        f.const(1.0, F32) / (square.value.reduce_sum() / count + NORM_EPSILON).sqrt() for square in squares
    ]
    adds = after.equals(2)
    with f.loop(n, step=LANES) as i:
        factor, shift, plus = (part.load_vector(i, LANES) for part in (weight, bias, added))
        for row, (own, mean, scale) in enumerate(zip(xs, means, scales, strict=True)):
            place = n * row + i
            value = ((own.load_vector(i, LANES) - mean) * scale).fma(factor, shift)
            # Zeros are read instead of a result that holds nothing yet.
            before = adds.select(result.load_vector(place, LANES), f.zeros(F32, LANES))
            result[place] = emit_mish(value) + plus + before
    return f.ret()
