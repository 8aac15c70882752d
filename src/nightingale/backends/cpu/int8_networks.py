"""The flow with int8 layers, for CPUs with int8 dot products but without bf16 instructions.

Quantized are the linear layers of the token encoder and of the estimator, the convolutions, and the logits of
the estimator's attention. Everything between them stays in float32. Each module here takes the place of a
torch module and calls one or two operations of kernels/render_operations.py.
"""

from __future__ import annotations

import copy
import math
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightingale.backends.cpu.bf16 import Net, with_parts
from nightingale.backends.cpu.int8_layout import tile_weight
from nightingale.backends.cpu.kernels import flow_attention, int8_conv1d, render_operations
from nightingale.backends.cpu.kernels.flow_attention import FlowAttentionOp
from nightingale.backends.cpu.kernels.int8_conv1d import CONV_OUTPUTS, Conv1dOp
from nightingale.backends.cpu.kernels.int8_gemm import GROUP_OUTPUTS
from nightingale.backends.cpu.kernels.jit import CompiledModule, compile_cached
from nightingale.backends.cpu.kernels.render_operations import LINEAR_OPCODES, RenderOpcode, SnakeOp
from nightingale.backends.cpu.kernels.rows_linear import RowsEpilogue, RowsLinearOp, linear_scratch_bytes
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, host_target
from nightingale.backends.cpu.kernels.thread_pool import ThreadPool, address_of
from nightingale.backends.shared.int8_blocks import ZERO_POINT, block_size_for
from nightingale.backends.shared.quantize import quantize_blocks, quantize_weights
from nightingale.models.chatterbox.hift.generator import Snake
from nightingale.models.chatterbox.s3gen.estimator import HEAD_WIDTH, AttentionProduct, TransformerBlock
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.conv import CustomConv1d, supports_tap_products
from nightingale.models.layers.streaming_state import StreamingState
from nightingale.models.layers.weight_layout import release_pages

CONV_BLOCK: Final = 256
"""Channels that share a scale in a convolution, if there are so many."""
MAX_OPERATIONS: Final = 3
"""Operations of one call of the pool."""


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
        self._floats: dict[str, Tensor] = {}

    def run(self, args: Mapping[Any, Any], *opcodes: RenderOpcode, thread_bytes: int = 0) -> None:
        """Run one or two operations with the same arguments; each thread has `thread_bytes` of scratch."""
        self.run_all([(opcode, args) for opcode in opcodes], thread_bytes=thread_bytes)

    def run_all(
        self, operations: Sequence[tuple[RenderOpcode, Mapping[Any, Any]]], *, thread_bytes: int
    ) -> None:
        """Run operations in their order."""
        threads = torch.get_num_threads()
        if threads not in self._pools:
            self._pools[threads] = ThreadPool(compiled_layers(), threads, max_ops=MAX_OPERATIONS)
        pool = self._pools[threads]
        pool.reserve_scratch(thread_bytes)
        pool.set_operations(*operations)
        pool.run()

    def buffer(self, size: int) -> int:
        """Return the address of `size` bytes, which are free until this thread's next call."""
        if self._buffer.nbytes < size:
            self._buffer = np.empty(2 * size, np.int8)
        return address_of(self._buffer)

    def floats(self, name: str, *shape: int) -> Tensor:
        """Return memory that lasts until this thread asks for the same name: new memory costs page faults."""
        size = math.prod(shape)
        if name not in self._floats or self._floats[name].numel() < size:
            self._floats[name] = torch.empty(size)
        return self._floats[name][:size].view(shape)


CONTEXT = KernelContext()


class Int8Linear(nn.Module):
    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.block = max(block for block in LINEAR_OPCODES if plain.in_features % block == 0)
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
    ) -> tuple[RenderOpcode, dict[Any, Any]]:
        """Return the operation that writes rows (rows, inputs) through this layer to out (rows, outputs)."""
        op = RowsLinearOp
        args: dict[Any, Any] = {
            op.X: rows, op.OUT: out, op.W_CODES: self.codes, op.W_SCALES: self.scales, op.BIAS: self.bias,
            op.ROWS: len(rows), op.OUTPUTS: self.out_features, op.K: self.in_features,
            op.HAS_NORM: int(norm is not None), op.EPILOGUE: int(epilogue),
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
            x = x.contiguous()
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


class Int8Attend(AttentionProduct):
    """Attention in int8; torch computes it with a mask, or for few queries."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        batch, heads, queries, head_dim = q.shape
        fits = head_dim == flow_attention.HEAD_DIM and queries >= flow_attention.QUERY_TILE
        if mask is not None or not fits or any(x.stride(3) != 1 for x in (q, k, v)):
            return super().forward(q, k, v, mask)
        out = q.new_empty(batch, queries, heads, head_dim)
        keys, op = k.shape[2], FlowAttentionOp
        sizes = flow_attention.packed_bytes(keys, heads)
        codes = CONTEXT.buffer(sum(sizes))
        args: dict[Any, Any] = {
            op.Q_HEAD_STRIDE: q.stride(1), op.Q_ROW_STRIDE: q.stride(2), op.K_HEAD_STRIDE: k.stride(1),
            op.K_ROW_STRIDE: k.stride(2), op.V_HEAD_STRIDE: v.stride(1), op.V_ROW_STRIDE: v.stride(2),
            op.K_CODES: codes, op.K_SCALES: codes + sizes[0], op.V_CODES: codes + sum(sizes[:2]),
            op.V_SCALES: codes + sum(sizes[:3]),
            op.QUERIES: queries, op.KEYS: keys, op.HEADS: heads,
        }  # fmt: skip
        thread_bytes = flow_attention.scratch_bytes(keys)
        for tensors in zip(q, k, v, out, strict=True):
            args |= zip((op.Q, op.K, op.V, op.OUT), tensors, strict=True)
            CONTEXT.run(args, RenderOpcode.PACK_KEYS, RenderOpcode.ATTENTION, thread_bytes=thread_bytes)
        return out.transpose(1, 2)


class Int8TransformerBlock(TransformerBlock):
    """A transformer block of the estimator; norms, GELU and residuals are part of its linear layers.

    It writes its result over an x that is contiguous: `EstimatorStage` has no other use for it, and new memory
    costs page faults.
    """

    def __init__(self, plain: TransformerBlock) -> None:
        nn.Module.__init__(self)
        attention, up, down = plain.attn1, plain.ff.net["0"], plain.ff.net["2"]
        self.norm1, self.norm3, self.heads, self.attend = (
            plain.norm1,
            plain.norm3,
            attention.heads,
            Int8Attend(),
        )
        projections = [attention.to_q, attention.to_k, attention.to_v]
        qkv = nn.Linear(
            attention.to_q.in_features, sum(layer.out_features for layer in projections), bias=False
        )
        qkv.weight = nn.Parameter(torch.cat([layer.weight for layer in projections]), requires_grad=False)
        self.qkv, self.out = Int8Linear(qkv), Int8Linear(attention.to_out[0])  # type: ignore[arg-type]
        self.up, self.down = Int8Linear(up["proj"]), Int8Linear(down)  # type: ignore[arg-type, index]
        for layer in projections:
            release_pages(layer.weight)

    @staticmethod
    def fits(block: nn.Module) -> bool:
        if not isinstance(block, TransformerBlock) or isinstance(block, Int8TransformerBlock):
            return False
        return all(Int8Linear.fits(layer) for layer in block.modules() if isinstance(layer, nn.Linear))

    def forward(self, x: Tensor, mask: Tensor | None, state: StreamingState | None = None) -> Tensor:
        batch, frames, width = x.shape
        rows = x.reshape(-1, width).contiguous()
        qkv = CONTEXT.floats("qkv", len(rows), self.qkv.out_features)
        inner = CONTEXT.floats("inner", len(rows), self.up.out_features)
        thread_bytes = max(layer.thread_bytes for layer in (self.qkv, self.out, self.up, self.down))
        CONTEXT.run_all([self.qkv.operation(rows, qkv, norm=self.norm1)], thread_bytes=thread_bytes)
        q, k, v = qkv.view(batch, frames, 3, self.heads, HEAD_WIDTH).permute(2, 0, 3, 1, 4)
        if state is not None:
            k, v = state.prepend_kv(k), state.prepend_kv(v)
        attended = self.attend(q, k, v, mask).transpose(1, 2).reshape(len(rows), -1).contiguous()
        operations = [
            self.out.operation(attended, rows, epilogue=RowsEpilogue.ADD),
            self.up.operation(rows, inner, norm=self.norm3, epilogue=RowsEpilogue.GELU),
            self.down.operation(inner, rows, epilogue=RowsEpilogue.ADD),
        ]
        CONTEXT.run_all(operations, thread_bytes=thread_bytes)
        return rows.view(batch, frames, width)


def int8_flow(plain: Flow) -> Flow:
    """Return a flow with int8 layers that shares everything else."""
    estimator = plain.decoder["estimator"]
    # Embeddings of time need float32, and their products are small.
    times = [part for name, part in estimator.named_modules() if "time_" in name or name.endswith(".mlp")]
    decoder = nn.ModuleDict({"estimator": with_int8_layers(estimator, times)})
    return with_parts(plain, decoder=decoder, encoder=with_int8_layers(plain.encoder))


def with_int8_layers(net: Net, excluded: Sequence[nn.Module] = ()) -> Net:
    """Return a copy in which the layers that fit are replaced and everything else is shared."""
    copies: dict[int, Any] = {id(weight): weight for weight in (*net.parameters(), *net.buffers())}
    kept = {id(inner) for part in excluded for inner in part.modules()}
    for layer in net.modules():
        if id(layer) in kept:
            continue
        if Int8Linear.fits(layer):
            copies[id(layer)] = Int8Linear(layer)  # type: ignore[arg-type]
        elif Int8Conv1d.fits(layer):
            copies[id(layer)] = Int8Conv1d(layer)  # type: ignore[arg-type]
        elif Int8TransformerBlock.fits(layer):
            copies[id(layer)] = Int8TransformerBlock(layer)  # type: ignore[arg-type]
            kept |= {id(inner) for inner in layer.modules()}
        elif isinstance(layer, AttentionProduct):
            copies[id(layer)] = Int8Attend()
        elif isinstance(layer, Snake):
            copies[id(layer)] = FusedSnake(layer)
    return copy.deepcopy(net, copies)
