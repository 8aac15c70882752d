"""The flow with int8 layers, for CPUs with int8 dot products but without bf16 instructions.

Quantized are the linear layers of the token encoder and of the estimator, the convolutions, and the logits of
the estimator's attention. Everything between them stays in float32. Each module here takes the place of a
torch module and calls one or two operations of kernels/render_operations.py.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightingale.backends.cpu.bf16 import Net, with_parts
from nightingale.backends.cpu.int8_layout import tile_weight
from nightingale.backends.cpu.kernels import flow_attention, render_operations
from nightingale.backends.cpu.kernels.flow_attention import FlowAttentionOp
from nightingale.backends.cpu.kernels.int8_conv1d import CONV_OUTPUTS, Conv1dOp
from nightingale.backends.cpu.kernels.int8_gemm import GROUP_OUTPUTS
from nightingale.backends.cpu.kernels.jit import CompiledModule, compile_cached
from nightingale.backends.cpu.kernels.render_operations import RenderOpcode, RowsLinearOp, SnakeOp
from nightingale.backends.cpu.kernels.target import DOT_INPUTS, host_target
from nightingale.backends.cpu.kernels.thread_pool import ThreadPool, address_of
from nightingale.backends.cpu.kernels.vector_math import LANES
from nightingale.backends.shared.int8_blocks import ZERO_POINT, block_size_for
from nightingale.backends.shared.quantize import quantize_blocks, quantize_weights
from nightingale.models.chatterbox.hift.generator import Snake
from nightingale.models.chatterbox.s3gen.estimator import AttentionProduct
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.conv import CustomConv1d, supports_tap_products
from nightingale.models.layers.weight_layout import release_pages


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

    def run(self, args: Mapping[Any, Any], *opcodes: RenderOpcode, thread_bytes: int = 0) -> None:
        """Run one or two operations with the same arguments; each thread has `thread_bytes` of scratch."""
        threads = torch.get_num_threads()
        if threads not in self._pools:
            self._pools[threads] = ThreadPool(compiled_layers(), threads, max_ops=2)
        pool = self._pools[threads]
        pool.reserve_scratch(thread_bytes)
        pool.set_operations(*((opcode, args) for opcode in opcodes))
        pool.run()

    def buffer(self, size: int) -> int:
        """Return the address of `size` bytes, which are free until this thread's next call."""
        if self._buffer.nbytes < size:
            self._buffer = np.empty(2 * size, np.int8)
        return address_of(self._buffer)


CONTEXT = KernelContext()


class Int8Linear(nn.Module):
    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        quantized = quantize_weights([plain.weight.detach()])
        self.block = quantized.codes.shape[-1]
        codes, scales = tile_weight(quantized, signed=host_target().signed_weights)
        bias = torch.zeros(plain.out_features) if plain.bias is None else plain.bias.detach().clone()
        for name, value in (("codes", codes), ("scales", scales), ("bias", bias)):
            self.register_buffer(name, value)
        release_pages(plain.weight)

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        if not isinstance(layer, nn.Linear) or layer.out_features % GROUP_OUTPUTS:
            return False
        return any(layer.in_features % block == 0 for block in render_operations.LINEAR_OPCODES)

    def forward(self, x: Tensor) -> Tensor:
        rows, op = x.reshape(-1, self.in_features).contiguous(), RowsLinearOp
        out = x.new_empty(len(rows), self.out_features)
        args = {
            op.X: rows, op.OUT: out, op.W_CODES: self.codes, op.W_SCALES: self.scales, op.BIAS: self.bias,
            op.ROWS: len(rows), op.OUTPUTS: self.out_features, op.K: self.in_features,
        }  # fmt: skip
        thread_bytes = render_operations.linear_scratch_bytes(self.in_features)
        CONTEXT.run(args, render_operations.LINEAR_OPCODES[self.block], thread_bytes=thread_bytes)
        return out.view(*x.shape[:-1], self.out_features)


class Int8Conv1d(CustomConv1d):
    def __init__(self, plain: nn.Conv1d) -> None:
        super().__init__(plain)
        inputs, outputs, taps = plain.in_channels, plain.out_channels, plain.kernel_size[0]
        self.block = block_size_for(inputs)
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

    def convolve_unpadded(self, x: Tensor) -> Tensor:
        """(batch, channels, time) -> (batch, outputs, time less the kernel's span)."""
        span = (self.kernel_size[0] - 1) * self.dilation[0]
        columns = x.shape[-1] - span
        # At least one vector of columns; those beyond `columns` are dropped.
        padded = nn.functional.pad(x, (0, max(0, LANES - columns))).contiguous()
        (batch, channels, length), op = padded.shape, Conv1dOp
        out = x.new_empty(batch, self.out_channels, length - span)
        codes = CONTEXT.buffer(channels * length + 4 * (channels // self.block) * length)
        args = {
            op.X_CODES: codes, op.X_SCALES: codes + channels * length, op.W_CODES: self.codes,
            op.W_SCALES: self.scales, op.W_CORRECTIONS: self.corrections, op.BIAS: self.bias,
            op.LENGTH: length, op.CHANNELS: channels, op.BLOCK: self.block, op.COLUMNS: length - span,
            op.OUTPUTS: self.out_channels, op.TAPS: self.kernel_size[0], op.DILATION: self.dilation[0],
        }  # fmt: skip
        for row, result in zip(padded, out, strict=True):
            args |= {op.X: row, op.OUT: result}
            CONTEXT.run(args, RenderOpcode.QUANTIZE_COLUMNS, RenderOpcode.CONV1D)
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
        elif isinstance(layer, AttentionProduct):
            copies[id(layer)] = Int8Attend()
        elif isinstance(layer, Snake):
            copies[id(layer)] = FusedSnake(layer)
    return copy.deepcopy(net, copies)
