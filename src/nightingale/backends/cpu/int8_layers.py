"""Linear layers and convolutions in int8, as torch modules that call kernels/render_operations.py.

Each module takes the place of a torch module and calls one or two operations. Everything between the products stays
in float32.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightingale.backends.cpu.int8_layout import tile_weight
from nightingale.backends.cpu.kernels import int8_conv1d, render_operations
from nightingale.backends.cpu.kernels.int8_conv1d import CONV_OUTPUTS, Conv1dOp
from nightingale.backends.cpu.kernels.int8_gemm import GROUP_OUTPUTS
from nightingale.backends.cpu.kernels.jit import CompiledModule, compile_cached
from nightingale.backends.cpu.kernels.render_operations import (
    LINEAR_OPCODES,
    RenderOpcode,
    SnakeOp,
    TransposeOp,
)
from nightingale.backends.cpu.kernels.rows_linear import (
    After,
    RowsEpilogue,
    RowsLinearOp,
    linear_scratch_bytes,
)
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, host_target
from nightingale.backends.cpu.kernels.thread_pool import ThreadPool, Words, address_of
from nightingale.backends.cpu.kernels.vector_math import LANES
from nightingale.backends.shared.int8_blocks import ZERO_POINT, block_size_for
from nightingale.backends.shared.quantize import quantize_blocks, quantize_weights
from nightingale.models.chatterbox.hift.generator import Snake
from nightingale.models.layers.aligned_arrays import page_aligned_zeros
from nightingale.models.layers.conv import CustomConv1d, supports_tap_products
from nightingale.models.layers.streaming_state import StreamingState
from nightingale.models.layers.weight_layout import release_pages

CONV_BLOCK: Final = 256
"""Channels that share a scale in a convolution, if there are so many."""
MAX_OPERATIONS: Final = 5
"""Operations of one call of the pool."""


KernelCall = tuple[RenderOpcode, Mapping[Any, Any]]
"""An operation and its arguments."""


@dataclass(frozen=True, slots=True)
class CallTable:
    """The words of some operations, and the scratch that a thread needs for them."""

    words: Words
    thread_bytes: int


@cache
def compiled_layers() -> CompiledModule:
    """Return the operations of all layers as machine code."""
    emit = partial(render_operations.emit_render_module, host_target())
    return compile_cached(emit, host_target(), name="render")


class KernelContext(threading.local):
    """The thread pools and the buffer of a thread that calls layers; each thread has its own."""

    def __init__(self) -> None:
        self._pools: dict[int, ThreadPool] = {}
        self._buffer: NDArray[np.int8] = np.empty(0, np.int8)
        self._memory: dict[str, Tensor] = {}
        self._floats: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self._moves = 0
        """Counts replacements of memory by larger memory."""
        self._tables: WeakKeyDictionary[nn.Module, tuple[tuple[int, ...], CallTable]] = WeakKeyDictionary()

    def run(self, args: Mapping[Any, Any], *opcodes: RenderOpcode, thread_bytes: int = 0) -> None:
        """Run one or two operations with the same arguments; each thread has `thread_bytes` of scratch."""
        self.run_all([(opcode, args) for opcode in opcodes], thread_bytes=thread_bytes)

    def run_all(self, operations: Sequence[KernelCall], *, thread_bytes: int) -> None:
        """Run operations in their order."""
        pool = self._pool(thread_bytes)
        pool.set_operations(*operations)
        pool.run()

    def run_table(self, table: CallTable) -> None:
        """Run the operations of a table in their order."""
        pool = self._pool(table.thread_bytes)
        pool.set_table(table.words)
        pool.run()

    def table_for(self, layer: nn.Module, build: Callable[[], CallTable], *sizes: int) -> CallTable:
        """Return the latest table of this layer, or call `build` if sizes or memory were others then.

        To collect the arguments of a transformer block takes longer than to run a small one. Their addresses last
        until memory of this context is replaced.
        """
        threads = torch.get_num_threads()
        known = self._tables.get(layer)
        if known is None or known[0] != (*sizes, threads, self._moves):
            table = build()
            known = (*sizes, threads, self._moves), table
            self._tables[layer] = known
        return known[1]

    def buffer(self, size: int) -> int:
        """Return the address of `size` bytes, which are free until this thread's next call."""
        if self._buffer.nbytes < size:
            self._buffer = page_aligned_zeros((2 * size,), np.int8, huge_pages=True)
            self._moves += 1
        return address_of(self._buffer)

    def floats(self, name: str, *shape: int) -> Tensor:
        """Return memory that lasts until this thread asks for the same name: new memory costs page faults."""
        if (name, shape) not in self._floats:
            size = math.prod(shape)
            if name not in self._memory or self._memory[name].numel() < size:
                memory = page_aligned_zeros((size,), huge_pages=True)
                self._memory[name] = torch.from_numpy(memory)
                self._moves += 1
            # Sentences have many lengths, so only the latest shape is kept.
            self._floats = {key: view for key, view in self._floats.items() if key[0] != name}
            self._floats[name, shape] = self._memory[name][:size].view(shape)
        return self._floats[name, shape]

    def _pool(self, thread_bytes: int) -> ThreadPool:
        threads = torch.get_num_threads()
        if threads not in self._pools:
            self._pools[threads] = ThreadPool(compiled_layers(), threads, max_ops=MAX_OPERATIONS)
        pool = self._pools[threads]
        pool.reserve_scratch(thread_bytes)
        return pool


CONTEXT = KernelContext()


def contiguous(x: Tensor) -> Tensor:
    """Return x (batch, rows, columns) in rows, also where it lies in columns, which torch takes long to copy."""
    if x.is_contiguous() or x.stride(1) != 1 or min(x.shape[1:]) < LANES:
        return x.contiguous()
    (batch, rows, columns), op = x.shape, TransposeOp
    out = x.new_empty(batch, rows, columns)
    args = {op.ROWS: columns, op.COLUMNS: rows, op.X_STRIDE: x.stride(2)}
    for source, result in zip(x, out, strict=True):
        CONTEXT.run(args | {op.X: source, op.OUT: result}, RenderOpcode.TRANSPOSE)
    return out


class Int8Linear(nn.Module):
    codes: Tensor

    def __init__(self, plain: nn.Linear, block: int | None = None) -> None:
        """block: inputs that share a scale; default: the most that there are kernels for."""
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.block = block or self.largest_block(plain)
        quantized = quantize_weights([plain.weight.detach()], block=self.block)
        codes, scales = tile_weight(quantized, signed=host_target().signed_weights)
        bias = torch.zeros(plain.out_features) if plain.bias is None else plain.bias.detach().clone()
        for name, value in (("codes", codes), ("scales", scales), ("bias", bias)):
            self.register_buffer(name, value)
        release_pages(plain.weight)

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        if not isinstance(layer, nn.Linear) or layer.out_features % GROUP_OUTPUTS:
            return False
        return any(layer.in_features % block == 0 for block in LINEAR_OPCODES)

    @staticmethod
    def largest_block(layer: nn.Linear) -> int:
        return max(block for block in LINEAR_OPCODES if layer.in_features % block == 0)

    @property
    def thread_bytes(self) -> int:
        return linear_scratch_bytes(self.in_features, self.block)

    def operation(
        self,
        rows: Tensor,
        out: Tensor,
        *,
        norm: nn.LayerNorm | None = None,
        epilogue: RowsEpilogue = RowsEpilogue.STORE,
    ) -> KernelCall:
        """Return the operation that writes rows (rows, inputs) through this layer to out (rows, outputs)."""
        op = RowsLinearOp
        args: dict[Any, Any] = {
            op.X: rows, op.OUT: out, op.W_CODES: self.codes, op.W_SCALES: self.scales, op.BIAS: self.bias,
            op.ROWS: len(rows), op.OUTPUTS: self.out_features, op.K: self.in_features,
            op.HAS_NORM: int(norm is not None), op.EPILOGUE: int(epilogue),
            op.LINKS: 0, op.X_IS_LOCAL: 0, op.OUT_IS_LOCAL: 0, op.TAPS: 1, op.PADDING: 0, op.INPUT_ROWS: len(rows),
            op.AFTER: int(After.NOTHING),
        }  # fmt: skip
        if norm is not None:
            args |= {op.NORM_WEIGHT: norm.weight, op.NORM_BIAS: norm.bias}
        return LINEAR_OPCODES[self.block], args

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features).contiguous()
        out = x.new_empty(len(rows), self.out_features)
        CONTEXT.run_all([self.operation(rows, out)], thread_bytes=self.thread_bytes)
        return out.view(*x.shape[:-1], self.out_features)


class FusedConv1d(CustomConv1d):
    """A convolution with the activation before it, and the sum with a residual after it."""

    def convolve_unpadded(self, x: Tensor) -> Tensor:
        return self.run(x, left=0, columns=x.shape[-1] - self.span)

    @property
    def span(self) -> int:
        return (self.kernel_size[0] - 1) * self.dilation[0]

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        return super().forward(x, state) if state is not None else self.same(x)

    def same(self, x: Tensor, snake: FusedSnake | None = None, residual: Tensor | None = None) -> Tensor:
        """Apply `snake`, convolve with padding, and add a contiguous residual."""
        columns = x.shape[-1] + self.left + self.right - self.span
        return self.run(x, left=self.left, columns=columns, snake=snake, residual=residual)

    @abstractmethod
    def run(
        self,
        x: Tensor,
        *,
        left: int,
        columns: int,
        snake: FusedSnake | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return `columns` outputs; the first one reads `left` zeros before x."""


class Int8Conv1d(FusedConv1d):
    def __init__(self, plain: nn.Conv1d) -> None:
        super().__init__(plain)
        inputs, outputs, taps = plain.in_channels, plain.out_channels, plain.kernel_size[0]
        self.block = CONV_BLOCK if inputs % CONV_BLOCK == 0 else block_size_for(inputs)
        codes, scales = quantize_blocks(plain.weight.detach().transpose(1, 2), self.block)
        by_output = (outputs // CONV_OUTPUTS, CONV_OUTPUTS, taps, inputs // self.block)
        grouped = codes.to(torch.int8).view(*by_output, self.block // DOT_INPUTS, DOT_INPUTS)
        corrections = (codes.sum(-1) * -ZERO_POINT).to(torch.int32)
        buffers = {
            "codes": grouped.permute(0, 2, 3, 4, 1, 5),
            "scales": scales.view(by_output).permute(0, 2, 3, 1),
            "corrections": corrections.view(by_output).permute(0, 2, 3, 1),
            "bias": torch.zeros(outputs) if plain.bias is None else plain.bias.detach(),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value.clone(memory_format=torch.contiguous_format))
        release_pages(plain.weight)

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        if not supports_tap_products(layer) or isinstance(layer, CustomConv1d):
            return False
        return layer.in_channels % 16 == 0 == layer.out_channels % CONV_OUTPUTS

    def run(
        self,
        x: Tensor,
        *,
        left: int,
        columns: int,
        snake: FusedSnake | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        if x.stride(2) != 1:
            x = contiguous(x)
        (batch, channels, _), op = x.shape, Conv1dOp
        # At least one tile of columns; those beyond `columns` are dropped.
        computed = max(host_target().conv_columns, columns)
        length = int8_conv1d.padded_length(computed + self.span)
        if residual is not None and computed > columns:
            residual = nn.functional.pad(residual, (0, computed - columns))
        out = x.new_empty(batch, self.out_channels, computed)
        codes = CONTEXT.buffer(channels * length + 4 * (channels // self.block) * length)
        args: dict[Any, Any] = {
            op.X_CODES: codes, op.X_SCALES: codes + channels * length, op.W_CODES: self.codes,
            op.W_SCALES: self.scales, op.W_CORRECTIONS: self.corrections, op.BIAS: self.bias,
            op.X_STRIDE: x.stride(1), op.INPUT_COLUMNS: x.shape[2], op.LEFT: left, op.LENGTH: length,
            op.CHANNELS: channels, op.BLOCK: self.block, op.COLUMNS: computed,
            op.OUTPUTS: self.out_channels, op.TAPS: self.kernel_size[0], op.DILATION: self.dilation[0],
            op.HAS_SNAKE: int(snake is not None), op.HAS_RESIDUAL: int(residual is not None),
        }  # fmt: skip
        if snake is not None:
            args |= {op.ALPHA: snake.alpha, op.INVERSE_ALPHA: snake.inverse}
        for number, (row, result) in enumerate(zip(x, out, strict=True)):
            args |= {op.X: row, op.OUT: result}
            if residual is not None:
                args[op.RESIDUAL] = residual[number]
            operations = RenderOpcode.QUANTIZE_COLUMNS, RenderOpcode.CONV1D
            CONTEXT.run(args, *operations, thread_bytes=int8_conv1d.scratch_bytes(channels))
        return out[..., :columns]


class FusedSnake(Snake):
    """Snake in float32, in one pass over memory."""

    def __init__(self, plain: Snake) -> None:
        nn.Module.__init__(self)
        self.alpha = plain.alpha
        self.register_buffer("inverse", (plain.alpha.detach() + 1e-9).reciprocal())

    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        self.write(x, out)
        return out

    def write(self, x: Tensor, out: Tensor) -> None:
        if x.stride(2) != 1 or out.stride(2) != 1:
            super().write(x, out)
            return
        op = SnakeOp
        args = {
            op.ALPHA: self.alpha, op.INVERSE_ALPHA: self.inverse, op.CHANNELS: x.shape[1],
            op.COLUMNS: x.shape[2], op.X_STRIDE: x.stride(1), op.OUT_STRIDE: out.stride(1),
        }  # fmt: skip
        for row, result in zip(x, out, strict=True):
            CONTEXT.run(args | {op.X: row, op.OUT: result}, RenderOpcode.SNAKE)
