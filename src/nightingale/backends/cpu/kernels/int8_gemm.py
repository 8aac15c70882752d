"""Int8 matrix product with quantized inputs: the linear layers of T3 (int4 weights too), and of the flow.

    y[m, n] = epilogue(bias[n] + Σ_b x_scale[m, b] · w_scale[n, b] · Σ_{i in b} x_code[m, i] · w_code[n, i])

Shapes and layout (k: inputs, blocks = k / QUANT_BLOCK)
    x               (rows, k) float32
    x_codes         (rows, k) int8                quantized in this file, by row and block
    x_scales        (rows, blocks) float32
    x_corrections   (rows, blocks) int32          -ZERO_POINT · Σ x_code, where weights are unsigned
    w_codes         (n / 16, k / 4, 16, 4) int8   tiles of 16 outputs; 4 inputs of each output side by side
    w_scales        (n / 16, blocks, 16) float32
    product         (rows, 64) float32            one group of 4 tiles, before bias and activation

    Weights of 4 bits have blocks of INT4_BLOCK:
    w_codes         (n / 16, k / 8, 16, 4) int8   bytes of inputs i + 4 … i + 8, whose low halves are those of i … i + 4
    w_scales        (n / 16, blocks, 16) float16

Pseudo-code of `emit_gemm`, for one group of outputs and 4, 2 or 1 rows
    for block in blocks:
        sums[row, output] = 0                                    # int32 registers
        for i in block, four at a time:
            sums[row, :] += dot4(w_codes[tile, i, :, :], broadcast(x_codes[row, i : i + 4]))
        product[row, :] += float(sums[row, :]) · w_scales[block, :] · x_scales[row, block]

Why it is fast: with one to four rows the product is bound by reading the weights. They are read once, in the
order in which they lie, a quarter of the bytes of float32; a weight that was loaded serves all rows; sums
stay in registers. Norm and quantization before it, and the activation after it, work on rows that are still
in the L1 cache. Each row is computed alone, in the same order whatever else is in the batch, so a batch
gives the same bits as its rows one by one. Of weights of 4 bits, a byte is one weight as it lies and another one
after a shift (shared/quantize.py). Both are 16 times as large, so products are divided by 16 at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.llvm_builder import F16, F32, I8, I32, I64, Function, Pointer, Value
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, TILE_OUTPUTS, Target
from nightingale.backends.cpu.kernels.vector_math import (
    LANES,
    emit_gelu,
    emit_nearest_int,
    emit_sigmoid,
)
from nightingale.backends.shared.int8_blocks import INT4_BLOCK, INT8_MAX, ZERO_POINT

QUANT_BLOCK: Final = 128
"""Inputs that share a scale in T3's layers."""
T3_BLOCKS: Final = {8: QUANT_BLOCK, 4: INT4_BLOCK}
"""The same by the bits of a weight."""
NORM_EPSILON: Final = 1e-5
MIN_MAGNITUDE: Final = 1e-30
"""Blocks of smaller numbers have the codes 0."""
GROUP_TILES: Final = 4
"""Tiles that a thread claims at a time."""
GROUP_OUTPUTS: Final = GROUP_TILES * TILE_OUTPUTS
ROW_PADDING: Final = 64
"""Bytes after the codes of a row: rows of 1024 would all lie in the same few places of the L1 cache."""
GEMM_ROWS: Final = (4, 2, 1)
"""Numbers of rows for which a kernel is emitted; others are composed of them."""


class Norm(IntEnum):
    """The normalization of a row before it is quantized."""

    NONE = 0
    RMS = 1
    LAYER = 2


class Epilogue(IntEnum):
    """The operation on a product after its bias was added."""

    STORE = 0
    ADD = 1
    """Add to what the output holds: the residual connection."""
    SWIGLU = 2
    """SiLU of the first half of a group times its second half; gate and up projections lie side by side."""
    GELU = 3


class GemmScratch:
    """A thread's memory for the quantized rows of a product and for one group of its outputs."""

    def __init__(self, scratch: Pointer, k: Value, blocks: Value, max_rows: int) -> None:
        self.codes = scratch.cast(I8)
        self.scales = self.codes.offset((k + ROW_PADDING) * max_rows).cast(F32)
        self.corrections = self.scales.offset(blocks * max_rows).cast(I32)
        self.product = self.corrections.offset(blocks * max_rows).cast(F32)
        self.k, self.blocks = k, blocks

    @staticmethod
    def size_bytes(k: int, block: int, max_rows: int) -> int:
        return max_rows * (k + ROW_PADDING + 8 * k // block + 4 * GROUP_OUTPUTS)

    def row(self, row: Value) -> tuple[Pointer, Pointer, Pointer]:
        """Return codes, scales and corrections of a row."""
        block = row * self.blocks
        codes = self.codes.offset(row * (self.k + ROW_PADDING))
        return codes, self.scales.offset(block), self.corrections.offset(block)


def emit_quantization(values: list[Value]) -> tuple[Value, Iterator[Value]]:
    """Return the scale of some vectors that share one, and an iterator that emits their codes as int32."""
    magnitude = values[0].abs()
    for value in values[1:]:
        magnitude = magnitude.max(value.abs())
    largest = magnitude.reduce_max()
    factor = emit_quantization_factor(largest)
    return largest * (1 / INT8_MAX), (emit_nearest_int(value, factor) for value in values)


def emit_quantization_factor(largest: Value) -> Value:
    """Return what numbers up to `largest` are multiplied by to become codes; 0 for a block of zeros."""
    return (largest > MIN_MAGNITUDE).select(largest.splat(float(INT8_MAX)) / largest, 0.0)


def emit_quantize_row(
    module: ir.Module, target: Target, norm: Norm, block: int = QUANT_BLOCK, rows: int = 1
) -> Function:
    """Emit quantize_row: x (k) to codes (k), scales (k / block) and corrections, normalized first.

    Several rows are `stride` apart, and their results as in `GemmScratch`. Each has the same bits as alone: their
    instructions alternate, because those of one row wait for each other.
    """
    params = {"x": F32, "weight": F32, "bias": F32, "codes": I8, "scales": F32, "corrections": I32, "k": I64}
    name = f"quantize_row_{norm.name}_{block}"
    f = Function(module, name if rows == 1 else f"{name}_{rows}", params | {"stride": I64})
    first, weight, bias, codes, scales, corrections, k, stride = f.params
    xs = [first.offset(stride * row) for row in range(rows)]
    count, blocks = k.cast(F32), k // block
    means, factors = [f.const(0.0, F32)] * rows, [f.const(1.0, F32)] * rows
    if norm == Norm.LAYER:
        totals = f.variables(rows, f.zeros(F32, LANES))
        with f.loop(k, step=LANES) as i:
            for x, total in zip(xs, totals, strict=True):
                total.value += x.load_vector(i, LANES)
        means = [total.value.reduce_sum() / count for total in totals]
    if norm != Norm.NONE:
        squares = f.variables(rows, f.zeros(F32, LANES))
        with f.loop(k, step=LANES) as i:
            for x, mean, square in zip(xs, means, squares, strict=True):
                centered = x.load_vector(i, LANES) - mean
                square.value = centered.fma(centered, square.value)
        factors = [
            factor / (square.value.reduce_sum() / count + NORM_EPSILON).sqrt()
            for factor, square in zip(factors, squares, strict=True)
        ]

    def normalized(row: int, at: Value) -> Value:
        value: Value = xs[row].load_vector(at, LANES)
        if norm == Norm.LAYER:
            value = value - means[row]
        if norm != Norm.NONE:
            value = value * factors[row] * weight.load_vector(at, LANES)
        if norm == Norm.LAYER:
            value = value + bias.load_vector(at, LANES)
        return value

    with f.loop(blocks) as number:
        # The values of a block are more than there are registers, so they are computed twice.
        start, magnitudes = number * block, f.variables(rows, f.zeros(F32, LANES))
        with f.loop(block, step=2 * LANES) as part:
            for row, magnitude in enumerate(magnitudes):
                pair = [normalized(row, start + part + half) for half in (0, LANES)]
                magnitude.value = magnitude.value.max(pair[0].abs().max(pair[1].abs()))
        largest = [magnitude.value.reduce_max() for magnitude in magnitudes]
        code_factors = [emit_quantization_factor(one) for one in largest]
        code_sums = f.variables(rows, f.zeros(I32, LANES))
        with f.loop(block, step=2 * LANES) as part:
            for half in (0, LANES):
                at = start + part + half
                for row, code_sum in enumerate(code_sums):
                    code = emit_nearest_int(normalized(row, at), code_factors[row])
                    code_sum.value += code
                    codes[(k + ROW_PADDING) * row + at] = code.cast(I8)
        for row in range(rows):
            scales[blocks * row + number] = largest[row] * (1 / INT8_MAX)
            if not target.signed_weights:
                corrections[blocks * row + number] = code_sums[row].value.reduce_sum() * -ZERO_POINT
    return f.ret()


def emit_dot_16(
    f: Function,
    target: Target,
    i: Value,
    tiles: list[Pointer],
    rows: list[Pointer],
    sums: Mapping[Any, Any],
    bits: int = 8,
    *,
    prefetch_bytes: int = 0,
    rows_are_unsigned: bool = False,
) -> None:
    """Add the products of inputs i … i + 16 to `sums`: variables by row, tile and part of a tile.

    prefetch_bytes: distance at which weights are prefetched that are not in a cache; 0 for none.
    rows_are_unsigned: inputs are not negative, and weights are signed on every target.
    """
    broadcasts = [target.emit_broadcasts(f, row.offset(i)) for row in rows]
    per_byte = 8 // bits
    for group, inputs in enumerate(zip(*broadcasts, strict=True)):
        start = i * (TILE_OUTPUTS // per_byte) + group // per_byte * DOT_INPUTS * TILE_OUTPUTS
        for tile, codes in enumerate(tiles):
            if prefetch_bytes and group % per_byte == 0:
                codes.prefetch(start + prefetch_bytes)
            for part in range(TILE_OUTPUTS // target.lanes):
                width = target.lanes * DOT_INPUTS
                weights = codes.load_vector(start + part * width, width)
                if group % per_byte != per_byte - 1:
                    weights = weights << 4
                    weights = weights if target.signed_weights else weights + ZERO_POINT
                for row, broadcast in enumerate(inputs):
                    total = sums[row, tile, part]
                    pair = (broadcast, weights) if rows_are_unsigned else (weights, broadcast)
                    total.value = target.emit_dot(f, total.value, *pair)


def emit_gemm(
    module: ir.Module, target: Target, rows: int, block: int = QUANT_BLOCK, bits: int = 8
) -> Function:
    """Emit gemm: one group of outputs of `rows` rows, to product (rows, GROUP_OUTPUTS)."""
    w = {"w_codes": I8, "w_scales": F32 if bits == 8 else F16}
    x = {"x_codes": I8, "x_scales": F32, "x_corrections": I32}
    f = Function(module, f"gemm_{rows}_{block}", {**w, **x, "product": F32, "k": I64})
    w_codes, w_scales, x_codes, x_scales, x_corrections, product, k = f.params
    lanes, at_once = target.lanes, target.gemm_tiles(rows)
    blocks, parts = k // block, range(TILE_OUTPUTS // lanes)
    registers = [(row, tile, part) for row in range(rows) for tile in range(at_once) for part in parts]
    for first in range(0, GROUP_TILES, at_once):
        totals = {place: f.variable(f.zeros(F32, lanes)) for place in registers}
        with f.loop(blocks) as number:
            corrections = [x_corrections[blocks * row + number] for row in range(rows)]
            sums = {place: f.variable(target.emit_sums(f, corrections[place[0]])) for place in registers}
            starts = [k * (first + tile) + number * block for tile in range(at_once)]
            tiles = [w_codes.offset(start * (TILE_OUTPUTS * bits // 8)) for start in starts]
            sources = [x_codes.offset((k + ROW_PADDING) * row + number * block) for row in range(rows)]
            unrolled = 4 * DOT_INPUTS if bits == 8 else block
            with f.loop(block, step=unrolled) as i:
                for part in range(0, unrolled, 4 * DOT_INPUTS):
                    prefetched = target.prefetch_bytes
                    emit_dot_16(f, target, i + part, tiles, sources, sums, bits, prefetch_bytes=prefetched)
            for row in range(rows):
                x_scale = x_scales[blocks * row + number]
                for tile in range(at_once):
                    for part in parts:
                        at = (blocks * (first + tile) + number) * TILE_OUTPUTS + part * lanes
                        w_scale = w_scales.load_vector(at, lanes)
                        scale = (w_scale if bits == 8 else w_scale.cast(F32)) * x_scale
                        exact = target.emit_sums_as_float(sums[row, tile, part].value)
                        total = totals[row, tile, part]
                        total.value = exact.fma(scale, total.value)
        for row, tile, part in registers:
            at = row * GROUP_OUTPUTS + (first + tile) * TILE_OUTPUTS + part * lanes
            result = totals[row, tile, part].value
            product[at] = result if bits == 8 else result * (1 / 16)
    return f.ret()


class Gemm:
    """The product of one group of outputs with any number of rows."""

    def __init__(self, module: ir.Module, target: Target, block: int = QUANT_BLOCK, bits: int = 8) -> None:
        self._kernels = {rows: emit_gemm(module, target, rows, block, bits) for rows in GEMM_ROWS}

    def emit_call(
        self, f: Function, w_codes: Pointer, w_scales: Pointer, x: GemmScratch, rows: Value
    ) -> None:
        """Multiply the first `rows` rows of `x`, a few at a time, into `x.product`."""
        done = f.variable(f.const(0))
        for several, kernel in self._kernels.items():
            with f.loop_forever():
                row = done.value
                f.break_if(row + several > rows)
                f.call(kernel, w_codes, w_scales, *x.row(row), x.product.offset(row * GROUP_OUTPUTS), x.k)
                done.value = row + several


def emit_epilogue(module: ir.Module, epilogue: Epilogue) -> Function:
    """Emit epilogue: product (rows, GROUP_OUTPUTS) plus bias, through the activation, to rows of `out`."""
    params = {"product": F32, "bias": F32, "out": F32, "rows": I64, "stride": I64}
    f = Function(module, f"epilogue_{epilogue.name}", params)
    products, bias, outs, rows, stride = f.params
    outputs = GROUP_OUTPUTS // 2 if epilogue == Epilogue.SWIGLU else GROUP_OUTPUTS
    with f.loop(rows) as row:
        product, out = products.offset(row * GROUP_OUTPUTS), outs.offset(row * stride)
        for at in range(0, outputs, LANES):
            value = product.load_vector(at, LANES) + bias.load_vector(at, LANES)
            if epilogue == Epilogue.ADD:
                value = value + out.load_vector(at, LANES)
            elif epilogue == Epilogue.SWIGLU:
                value = value * emit_sigmoid(value) * product.load_vector(outputs + at, LANES)
            elif epilogue == Epilogue.GELU:
                value = emit_gelu(value)
            out[at] = value
    return f.ret()
