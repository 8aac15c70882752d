"""The operations of the flow and the vocoder: convolution, Snake, attention and linear layers in one module.

Convolutions and attention have files of their own (int8_conv1d.py, winograd_conv1d.py, flow_attention.py); here are

    linear   (rows, k) -> (rows, n) float32. A thread quantizes ROWS_PER_PASS rows and takes them through all
             groups of outputs (int8_gemm.py): rows are many here, so they are divided, not the weights.
    snake    (channels, columns): y = x + sin²(αx) / α in one pass over memory, where torch takes five.
             Threads divide the channels.

A layer of a network is one or two operations (backends/cpu/int8_networks.py).
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import Final

from llvmlite import ir

from nightingale.backends.cpu.kernels import int8_gemm
from nightingale.backends.cpu.kernels.flow_attention import HEAD_DIM, emit_flow_attention, emit_pack_keys
from nightingale.backends.cpu.kernels.int8_conv1d import emit_conv1d, emit_quantize_columns
from nightingale.backends.cpu.kernels.int8_gemm import GROUP_OUTPUTS, Epilogue, GemmScratch, Norm
from nightingale.backends.cpu.kernels.llvm_builder import F32, I8, I64, Function, Value
from nightingale.backends.cpu.kernels.target import Target
from nightingale.backends.cpu.kernels.thread_pool import Arg, Operation, emit_thread_pool
from nightingale.backends.cpu.kernels.vector_math import LANES, emit_sin_squared
from nightingale.backends.cpu.kernels.winograd_conv1d import emit_winograd_conv1d

ROWS_PER_PASS: Final = 16
"""Rows of a linear layer that fit in a core's cache."""
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


LINEAR_OPCODES: Final = {128: RenderOpcode.LINEAR_128, 64: RenderOpcode.LINEAR_64}
"""Opcodes by the number of inputs that share a scale."""


class SnakeOp(Arg):
    X = OUT = ALPHA = INVERSE_ALPHA = F32
    CHANNELS = COLUMNS = X_STRIDE = OUT_STRIDE = I64


class RowsLinearOp(Arg):
    X = W_SCALES = BIAS = OUT = F32
    W_CODES = I8
    ROWS = OUTPUTS = K = I64


def linear_scratch_bytes(k: int) -> int:
    """Return the bytes that a thread needs for rows of k inputs."""
    return GemmScratch.size_bytes(k, min(LINEAR_OPCODES), ROWS_PER_PASS)


def emit_render_module(target: Target) -> ir.Module:
    """Emit the module of the flow's and the vocoder's layers."""
    module = ir.Module("render")
    store = int8_gemm.emit_epilogue(module, Epilogue.STORE)
    quantize_row = partial(int8_gemm.emit_quantize_row, module, target, Norm.NONE)
    quantize = {block: quantize_row(block) for block in LINEAR_OPCODES}
    operations = {
        RenderOpcode.QUANTIZE_COLUMNS: emit_quantize_columns(module, target),
        RenderOpcode.CONV1D: emit_conv1d(module, target),
        RenderOpcode.SNAKE: _emit_snake(module),
        RenderOpcode.PACK_KEYS: emit_pack_keys(module, target),
        RenderOpcode.ATTENTION: emit_flow_attention(module, target, quantize[HEAD_DIM]),
        RenderOpcode.WINOGRAD_CONV1D: emit_winograd_conv1d(module, target),
    }
    for block, opcode in LINEAR_OPCODES.items():
        operations[opcode] = _emit_linear(module, target, block, quantize[block], store)
    emit_thread_pool(module, target, operations, spin_ms=SPIN_MS)
    return module


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


def _emit_linear(
    module: ir.Module, target: Target, block: int, quantize_row: Function, store: Function
) -> Operation:
    gemm = int8_gemm.Gemm(module, target, block)
    f = Operation(module, f"linear_{block}")
    op = f.args(RowsLinearOp)
    k, bias, outputs = op.k, op.bias, op.outputs
    blocks = k // block
    scratch = GemmScratch(f.scratch, k, blocks, ROWS_PER_PASS)
    begin, end = f.thread_range(op.rows, ROWS_PER_PASS)
    with f.loop(end, start=begin, step=ROWS_PER_PASS) as first:
        count = (first + ROWS_PER_PASS).min(end) - first
        with f.loop(count) as row:
            f.call(quantize_row, op.x.offset((first + row) * k), bias, bias, *scratch.row(row), k)
        with f.loop(outputs // GROUP_OUTPUTS) as group:
            at = group * GROUP_OUTPUTS
            gemm.emit_call(f, op.w_codes.offset(at * k), op.w_scales.offset(at * blocks), scratch, count)
            out = op.out.offset(first * outputs + at)
            f.call(store, scratch.product, bias.offset(at), out, count, outputs)
    return f.ret()
