"""The operations of the flow and the vocoder: convolution, norms, Snake, attention and linear layers in one module.

All but two have files of their own (int8_conv1d.py, winograd_conv1d.py, norm_mish.py, packed_keys.py,
project_heads.py, flow_attention.py, rows_linear.py); here are

    snake    (channels, columns): y = x + sin²(αx) / α in one pass over memory, where torch takes five.
             Threads divide the channels.
    transpose
             (channels, frames) to (frames, channels) or back, between convolutions and transformer blocks.

A layer of a network is one or two operations (backends/cpu/int8_layers.py, int8_networks.py).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from llvmlite import ir

from nightingale.backends.cpu.kernels.flow_attention import emit_flow_attention
from nightingale.backends.cpu.kernels.int8_conv1d import emit_conv1d, emit_quantize_columns
from nightingale.backends.cpu.kernels.llvm_builder import F32, I64, Value
from nightingale.backends.cpu.kernels.norm_mish import NormMish
from nightingale.backends.cpu.kernels.packed_keys import BlockPackers, emit_pack_keys
from nightingale.backends.cpu.kernels.project_heads import PROJECT_BLOCK, emit_project_heads
from nightingale.backends.cpu.kernels.rows_linear import RowsGemm, emit_rows_linear
from nightingale.backends.cpu.kernels.target import Target
from nightingale.backends.cpu.kernels.thread_pool import Arg, Operation, emit_thread_pool
from nightingale.backends.cpu.kernels.vector_math import LANES, emit_sin_squared, transposed
from nightingale.backends.cpu.kernels.winograd_conv1d import emit_winograd_conv1d

SPIN_MS: Final = 0.2
"""Short, because between two layers torch's threads need the same cores."""


class RenderOpcode(IntEnum):
    QUANTIZE_COLUMNS = 0
    CONV1D = 1
    SNAKE = 2
    PACK_KEYS = 3
    ATTENTION = 4
    LINEAR_128 = 5
    LINEAR_64 = 6
    WINOGRAD_CONV1D = 7
    LINEAR_256 = 8
    PROJECT_HEADS = 9
    LINKED = 10
    """Computed by an operation before it in the table (RowsLinearOp.LINKS)."""
    TRANSPOSE = 11


LINEAR_OPCODES: Final = {
    256: RenderOpcode.LINEAR_256,
    128: RenderOpcode.LINEAR_128,
    64: RenderOpcode.LINEAR_64,
}
"""Opcodes by the number of inputs that share a scale."""


class SnakeOp(Arg):
    X = OUT = ALPHA = INVERSE_ALPHA = F32
    CHANNELS = COLUMNS = X_STRIDE = OUT_STRIDE = I64


class TransposeOp(Arg):
    """X (ROWS, COLUMNS), rows X_STRIDE apart, to OUT (COLUMNS, ROWS); at least LANES of both."""

    X = OUT = F32
    ROWS = COLUMNS = X_STRIDE = I64


def emit_render_module(target: Target) -> ir.Module:
    """Emit the module of the flow's and the vocoder's layers."""
    module = ir.Module("render")
    packers = BlockPackers(module, target)
    operations = {
        RenderOpcode.QUANTIZE_COLUMNS: emit_quantize_columns(module, target),
        RenderOpcode.CONV1D: emit_conv1d(module, target),
        RenderOpcode.SNAKE: _emit_snake(module),
        RenderOpcode.TRANSPOSE: _emit_transpose(module),
        RenderOpcode.PACK_KEYS: emit_pack_keys(module, packers),
        RenderOpcode.ATTENTION: emit_flow_attention(module, target),
        RenderOpcode.WINOGRAD_CONV1D: emit_winograd_conv1d(module, target),
    }
    norm_mish = NormMish(module, target)
    gemms = {block: RowsGemm(module, target, block) for block in LINEAR_OPCODES}
    for block, opcode in LINEAR_OPCODES.items():
        operations[opcode] = emit_rows_linear(module, gemms[block], norm_mish, block)
    operations[RenderOpcode.PROJECT_HEADS] = emit_project_heads(module, gemms[PROJECT_BLOCK], packers)
    emit_thread_pool(module, target, operations, spin_ms=SPIN_MS)
    return module


def _emit_transpose(module: ir.Module) -> Operation:
    f = Operation(module, "transpose")
    op = f.args(TransposeOp)
    tiles = (op.rows + (LANES - 1)) // LANES
    begin, end = f.thread_range(tiles)
    with f.loop(end, start=begin) as tile, f.loop(op.columns, step=LANES) as start:
        # The last tiles begin earlier, and write some numbers again.
        row, column = (tile * LANES).min(op.rows - LANES), start.min(op.columns - LANES)
        x = op.x.offset(row * op.x_stride + column)
        loaded = [x.load_vector(op.x_stride * number, LANES) for number in range(LANES)]
        for number, turned in enumerate(transposed(loaded)):
            op.out[(column + number) * op.rows + row] = turned
    return f.ret()


def _emit_snake(module: ir.Module) -> Operation:
    f = Operation(module, "snake")
    op = f.args(SnakeOp)
    begin, end = f.thread_range(op.channels)
    with f.loop(end, start=begin) as channel:
        x, out = op.x.offset(channel * op.x_stride), op.out.offset(channel * op.out_stride)
        alpha, inverse = op.alpha[channel], op.inverse_alpha[channel]

        def snake(value: Value) -> Value:
            return emit_sin_squared(value * alpha).fma(inverse, value)

        whole = op.columns // LANES * LANES
        with f.loop(whole, step=LANES) as column:
            out[column] = snake(x.load_vector(column, LANES))
        with f.loop(op.columns, start=whole) as column:
            out[column] = snake(f.zeros(F32, LANES) + x[column]).extract(0)
    return f.ret()
