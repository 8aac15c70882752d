"""The flow and the vocoder with int8 layers, for CPUs with int8 dot products but without bf16 instructions.

Quantized are the linear layers of the token encoder and of the estimator, the convolutions, and the logits of
the estimator's attention. Everything between them stays in float32. Each module here takes the place of a
torch module and calls one or two operations of kernels/render_operations.py; the networks that it was made
of stay as they are (tests/backends/cpu/test_int8_networks.py compares both).
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightingale.backends.cpu.bf16 import with_parts
from nightingale.backends.cpu.int8_layout import tile_weight
from nightingale.backends.cpu.kernels import flow_attention
from nightingale.backends.cpu.kernels.flow_attention import FlowAttentionOp
from nightingale.backends.cpu.kernels.int8_conv1d import CONV_OUTPUTS, Conv1dOp
from nightingale.backends.cpu.kernels.int8_gemm import GROUP_OUTPUTS
from nightingale.backends.cpu.kernels.jit import CompiledModule
from nightingale.backends.cpu.kernels.render_operations import (
    LINEAR_OPCODES,
    RenderOpcode,
    RowsLinearOp,
    SnakeOp,
    linear_scratch_bytes,
)
from nightingale.backends.cpu.kernels.target import DOT_INPUTS
from nightingale.backends.cpu.kernels.thread_pool import OpField, ThreadPool, address_of
from nightingale.backends.cpu.kernels.vector_math import LANES
from nightingale.backends.shared.quantize import ZERO_POINT, block_size_for, quantize_blocks, quantize_weights
from nightingale.models.chatterbox.hift.generator import Hift, Snake
from nightingale.models.chatterbox.s3gen.estimator import AttentionProduct
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.conv import CustomConv1d, supports_tap_products
from nightingale.models.layers.weight_layout import release_pages

Net = TypeVar("Net", bound=nn.Module)


class KernelContext:
    """The compiled kernels, with a thread pool and a buffer for each thread that calls a layer."""

    def __init__(self, module: CompiledModule, *, signed_weights: bool) -> None:
        self._module, self.signed_weights = module, signed_weights
        self._local = threading.local()

    def run(self, *operations: Mapping[Any, int], thread_bytes: int = 0) -> None:
        """Run one or two operations, which need `thread_bytes` of scratch memory in each thread."""
        pools: dict[int, ThreadPool] = self._local.__dict__.setdefault("pools", {})
        threads = torch.get_num_threads()
        if threads not in pools:
            pools[threads] = ThreadPool(self._module, threads, max_ops=2)
        pools[threads].reserve_scratch(thread_bytes)
        pools[threads].set_operations(*operations)
        pools[threads].run()

    def buffer(self, size: int) -> int:
        """Return the address of `size` bytes, which are free until this thread's next call."""
        found: NDArray[np.int8] | None = getattr(self._local, "buffer", None)
        if found is None or found.nbytes < size:
            found = self._local.buffer = np.empty(2 * size, np.int8)
        return address_of(found)

    def __deepcopy__(self, _memo: object) -> KernelContext:
        return self


class Int8Linear(nn.Module):
    def __init__(self, plain: nn.Linear, context: KernelContext) -> None:
        super().__init__()
        self.in_features, self.out_features, self._context = plain.in_features, plain.out_features, context
        quantized = quantize_weights([plain.weight.detach()])
        self.block = quantized.codes.shape[-1]
        codes, scales = tile_weight(quantized, signed=context.signed_weights)
        bias = torch.zeros(plain.out_features) if plain.bias is None else plain.bias.detach().clone()
        for name, value in (("codes", codes), ("scales", scales), ("bias", bias)):
            self.register_buffer(name, value)
        release_pages(plain.weight)

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        if not isinstance(layer, nn.Linear) or layer.out_features % GROUP_OUTPUTS:
            return False
        return any(layer.in_features % block == 0 for block in LINEAR_OPCODES)

    def forward(self, x: Tensor) -> Tensor:
        rows, op = x.reshape(-1, self.in_features).contiguous(), RowsLinearOp
        out = x.new_empty(len(rows), self.out_features)
        linear = {
            OpField.OPCODE: LINEAR_OPCODES[self.block], op.X: rows.data_ptr(), op.OUT: out.data_ptr(),
            op.W_CODES: _address(self.codes), op.W_SCALES: _address(self.scales),
            op.BIAS: _address(self.bias), op.ROWS: len(rows), op.OUTPUTS: self.out_features,
            op.K: self.in_features,
        }  # fmt: skip
        self._context.run(linear, thread_bytes=linear_scratch_bytes(self.in_features))
        return out.view(*x.shape[:-1], self.out_features)


class Int8Conv1d(CustomConv1d):
    def __init__(self, plain: nn.Conv1d, context: KernelContext) -> None:
        super().__init__(plain)
        inputs, outputs, taps = plain.in_channels, plain.out_channels, plain.kernel_size[0]
        self._context, self.block = context, block_size_for(inputs)
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
        out = x.new_empty(len(x), self.out_channels, padded.shape[-1] - span)
        for row, result in zip(padded, out, strict=True):
            self._convolve(row, result)
        return out[..., :columns]

    def _convolve(self, x: Tensor, out: Tensor) -> None:
        (channels, length), op = x.shape, Conv1dOp
        codes = self._context.buffer(channels * length + 4 * (channels // self.block) * length)
        args: dict[Any, int] = {
            op.X: x.data_ptr(), op.X_CODES: codes, op.X_SCALES: codes + channels * length,
            op.W_CODES: _address(self.codes), op.W_SCALES: _address(self.scales),
            op.W_CORRECTIONS: _address(self.corrections), op.BIAS: _address(self.bias),
            op.OUT: out.data_ptr(), op.LENGTH: length, op.CHANNELS: channels, op.BLOCK: self.block,
            op.COLUMNS: out.shape[1], op.OUTPUTS: self.out_channels, op.TAPS: self.kernel_size[0],
            op.DILATION: self.dilation[0],
        }  # fmt: skip
        opcodes = RenderOpcode.QUANTIZE_COLUMNS, RenderOpcode.CONV1D
        self._context.run(*({**args, OpField.OPCODE: opcode} for opcode in opcodes))


class FusedSnake(Snake):
    """Snake in float32, in one pass over memory."""

    def __init__(self, plain: Snake, context: KernelContext) -> None:
        nn.Module.__init__(self)
        self.alpha, self._context = plain.alpha, context
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
        for row, result in zip(x, out, strict=True):
            snake = {
                OpField.OPCODE: RenderOpcode.SNAKE, op.X: row.data_ptr(), op.OUT: result.data_ptr(),
                op.ALPHA: _address(self.alpha), op.INVERSE_ALPHA: _address(self.inverse),
                op.CHANNELS: row.shape[0], op.COLUMNS: row.shape[1], op.X_STRIDE: row.stride(0),
                op.OUT_STRIDE: result.stride(0),
            }  # fmt: skip
            self._context.run(snake)


class Int8Attend(AttentionProduct):
    """Attention with int8 queries and keys; torch computes it with a mask, or for few queries."""

    def __init__(self, context: KernelContext) -> None:
        super().__init__()
        self._context = context

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        batch, heads, queries, head_dim = q.shape
        fits = head_dim == flow_attention.HEAD_DIM and queries >= flow_attention.QUERY_TILE
        if mask is not None or not fits or any(x.stride(3) != 1 for x in (q, k, v)):
            return super().forward(q, k, v, mask)
        out = q.new_empty(batch, queries, heads, head_dim)
        keys, op = k.shape[2], FlowAttentionOp
        sizes = flow_attention.packed_bytes(keys, heads)
        codes = self._context.buffer(sum(sizes))
        args: dict[Any, int] = {
            op.Q_HEAD_STRIDE: q.stride(1), op.Q_ROW_STRIDE: q.stride(2), op.K_HEAD_STRIDE: k.stride(1),
            op.K_ROW_STRIDE: k.stride(2), op.V_HEAD_STRIDE: v.stride(1), op.V_ROW_STRIDE: v.stride(2),
            op.K_CODES: codes, op.K_SCALES: codes + sizes[0], op.PACKED_VALUES: codes + sizes[0] + sizes[1],
            op.QUERIES: queries, op.KEYS: keys, op.HEADS: heads,
        }  # fmt: skip
        opcodes = RenderOpcode.PACK_KEYS, RenderOpcode.ATTENTION
        thread_bytes = flow_attention.scratch_bytes(keys)
        for tensors in zip(q, k, v, out, strict=True):
            args |= zip((op.Q, op.K, op.V, op.OUT), (x.data_ptr() for x in tensors), strict=True)
            pair = ({**args, OpField.OPCODE: opcode} for opcode in opcodes)
            self._context.run(*pair, thread_bytes=thread_bytes)
        return out.transpose(1, 2)


def int8_flow(plain: Flow, context: KernelContext) -> Flow:
    """Return a flow with int8 layers that shares everything else; a flow that has them is returned itself."""
    estimator = plain.decoder["estimator"]
    if any(isinstance(part, Int8Linear) for part in estimator.modules()):
        return plain
    # Embeddings of time need float32, and their products are small.
    times = [part for name, part in estimator.named_modules() if "time_" in name or name.endswith(".mlp")]
    decoder = nn.ModuleDict({"estimator": _with_int8_layers(estimator, context, times)})
    return with_parts(plain, decoder=decoder, encoder=_with_int8_layers(plain.encoder, context))


def int8_vocoder(plain: Hift, context: KernelContext) -> Hift:
    """Return a vocoder with int8 residual blocks; a vocoder that has them is returned itself."""
    if any(isinstance(part, Int8Conv1d) for part in plain.resblocks.modules()):
        return plain
    names = ("resblocks", "source_resblocks")
    return with_parts(plain, **{name: _with_int8_layers(getattr(plain, name), context) for name in names})


def _with_int8_layers(net: Net, context: KernelContext, excluded: list[nn.Module] | None = None) -> Net:
    """Return a copy in which the layers that fit are replaced and everything else is shared."""
    copies: dict[int, Any] = {id(weight): weight for weight in (*net.parameters(), *net.buffers())}
    kept = {id(inner) for part in excluded or [] for inner in part.modules()}
    for layer in net.modules():
        if id(layer) in kept:
            continue
        if Int8Linear.fits(layer):
            copies[id(layer)] = Int8Linear(layer, context)  # type: ignore[arg-type]
        elif Int8Conv1d.fits(layer):
            copies[id(layer)] = Int8Conv1d(layer, context)  # type: ignore[arg-type]
        elif isinstance(layer, AttentionProduct):
            copies[id(layer)] = Int8Attend(context)
        elif isinstance(layer, Snake):
            copies[id(layer)] = FusedSnake(layer, context)
    return copy.deepcopy(net, copies)


def _address(value: Tensor | nn.Module | None) -> int:
    assert isinstance(value, Tensor)
    return value.data_ptr()
