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
from nightingale.backends.cpu.kernels.int8_conv1d import CONV_OUTPUTS, Conv1dOp, QuantizeColumnsOp
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
from nightingale.backends.cpu.kernels.thread_pool import (
    JOB_WORDS,
    OP_WORDS,
    JobField,
    OpField,
    ThreadPool,
    address_of,
    write_fields,
)
from nightingale.backends.cpu.kernels.vector_math import LANES
from nightingale.backends.shared.aligned_arrays import page_aligned_zeros
from nightingale.backends.shared.quantize import ZERO_POINT, block_size_for, quantize_blocks, quantize_weights
from nightingale.models.chatterbox.hift.generator import Hift, Snake
from nightingale.models.chatterbox.s3gen.estimator import Attend
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.conv import OwnConv1d, can_shift
from nightingale.models.layers.mapped_weights import let_go

Net = TypeVar("Net", bound=nn.Module)


class KernelContext:
    """The compiled kernels, and a thread pool for each thread that calls a layer."""

    def __init__(self, module: CompiledModule, *, signed_weights: bool) -> None:
        self.module, self.signed_weights = module, signed_weights
        self._local = threading.local()

    def runner(self) -> OperationRunner:
        """Return this thread's runner, with as many threads as torch uses here."""
        runners: dict[int, OperationRunner] = self._local.__dict__.setdefault("runners", {})
        threads = torch.get_num_threads()
        if threads not in runners:
            runners[threads] = OperationRunner(self.module, threads)
        return runners[threads]

    def __deepcopy__(self, _memo: object) -> KernelContext:
        return self


class OperationRunner:
    """Runs one or two operations at a time on a pool of threads."""

    def __init__(self, module: CompiledModule, threads: int) -> None:
        self._job, self._ops = (
            page_aligned_zeros(shape, np.int64) for shape in ((JOB_WORDS,), (2, OP_WORDS))
        )
        self._job[JobField.OPS], self._job[JobField.THREADS] = address_of(self._ops), threads
        self._pool, self.threads = ThreadPool(module, self._job, threads), threads
        self._scratch: NDArray[np.int8] = np.empty(0, np.int8)

    def run(self, *operations: Mapping[Any, int]) -> None:
        for row, values in zip(self._ops, operations, strict=False):
            write_fields(row, values)
        self._job[JobField.OP_COUNT] = len(operations)
        self._pool.run()

    def scratch(self, size: int) -> int:
        """Return the address of `size` bytes, which are free until the next call."""
        if self._scratch.nbytes < size:
            self._scratch = np.empty(2 * size, np.int8)
        return address_of(self._scratch)


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
        let_go(plain.weight)

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        if not isinstance(layer, nn.Linear) or layer.out_features % GROUP_OUTPUTS:
            return False
        return any(layer.in_features % block == 0 for block in LINEAR_OPCODES)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features).contiguous()
        out = x.new_empty(len(rows), self.out_features)
        runner, scratch = self._context.runner(), linear_scratch_bytes(self.in_features)
        op = {
            OpField.OPCODE: LINEAR_OPCODES[self.block], RowsLinearOp.X: rows.data_ptr(),
            RowsLinearOp.W_CODES: _address(self.codes), RowsLinearOp.W_SCALES: _address(self.scales),
            RowsLinearOp.BIAS: _address(self.bias), RowsLinearOp.OUT: out.data_ptr(),
            RowsLinearOp.ROWS: len(rows), RowsLinearOp.OUTPUTS: self.out_features,
            RowsLinearOp.K: self.in_features, RowsLinearOp.SCRATCH_BYTES: scratch,
            RowsLinearOp.SCRATCH: runner.scratch(scratch * runner.threads),
        }  # fmt: skip
        runner.run(op)
        return out.view(*x.shape[:-1], self.out_features)


class Int8Conv1d(OwnConv1d):
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
        let_go(plain.weight)

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        if not can_shift(layer) or isinstance(layer, OwnConv1d):
            return False
        return layer.in_channels % 16 == 0 == layer.out_channels % CONV_OUTPUTS

    def convolved(self, x: Tensor) -> Tensor:
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
        channels, length = x.shape
        runner = self._context.runner()
        codes = runner.scratch(channels * length + 4 * (channels // self.block) * length)
        scales = codes + channels * length
        quantize = {
            OpField.OPCODE: RenderOpcode.QUANTIZE_COLUMNS, QuantizeColumnsOp.X: x.data_ptr(),
            QuantizeColumnsOp.X_CODES: codes, QuantizeColumnsOp.X_SCALES: scales,
            QuantizeColumnsOp.LENGTH: length, QuantizeColumnsOp.CHANNELS: channels,
            QuantizeColumnsOp.BLOCK: self.block,
        }  # fmt: skip
        convolve = {
            OpField.OPCODE: RenderOpcode.CONV1D, Conv1dOp.X_CODES: codes, Conv1dOp.X_SCALES: scales,
            Conv1dOp.W_CODES: _address(self.codes), Conv1dOp.W_SCALES: _address(self.scales),
            Conv1dOp.W_CORRECTIONS: _address(self.corrections), Conv1dOp.BIAS: _address(self.bias),
            Conv1dOp.OUT: out.data_ptr(), Conv1dOp.LENGTH: length, Conv1dOp.CHANNELS: channels,
            Conv1dOp.BLOCK: self.block, Conv1dOp.COLUMNS: out.shape[1],
            Conv1dOp.OUTPUTS: self.out_channels, Conv1dOp.TAPS: self.kernel_size[0],
            Conv1dOp.DILATION: self.dilation[0],
        }  # fmt: skip
        runner.run(quantize, convolve)


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
        for row, result in zip(x, out, strict=True):
            op = {
                OpField.OPCODE: RenderOpcode.SNAKE, SnakeOp.X: row.data_ptr(), SnakeOp.OUT: result.data_ptr(),
                SnakeOp.ALPHA: _address(self.alpha), SnakeOp.INVERSE_ALPHA: _address(self.inverse),
                SnakeOp.CHANNELS: row.shape[0], SnakeOp.COLUMNS: row.shape[1],
                SnakeOp.X_STRIDE: row.stride(0), SnakeOp.OUT_STRIDE: result.stride(0),
            }  # fmt: skip
            self._context.runner().run(op)


class Int8Attend(Attend):
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
        runner, keys, op = self._context.runner(), k.shape[2], FlowAttentionOp
        per_thread, sizes = flow_attention.scratch_bytes(keys), flow_attention.packed_bytes(keys, heads)
        codes = runner.scratch(sum(sizes) + per_thread * runner.threads)
        shared: dict[Any, int] = {
            op.Q_HEAD_STRIDE: q.stride(1), op.Q_ROW_STRIDE: q.stride(2), op.K_HEAD_STRIDE: k.stride(1),
            op.K_ROW_STRIDE: k.stride(2), op.V_HEAD_STRIDE: v.stride(1), op.V_ROW_STRIDE: v.stride(2),
            op.K_CODES: codes, op.K_SCALES: codes + sizes[0], op.PACKED_VALUES: codes + sizes[0] + sizes[1],
            op.QUERIES: queries, op.KEYS: keys, op.HEADS: heads, op.SCRATCH: codes + sum(sizes),
            op.SCRATCH_BYTES: per_thread,
        }  # fmt: skip
        for query, key, value, result in zip(q, k, v, out, strict=True):
            shared |= {op.Q: query.data_ptr(), op.K: key.data_ptr(), op.V: value.data_ptr()}
            shared[op.OUT] = result.data_ptr()
            runner.run(
                {**shared, OpField.OPCODE: RenderOpcode.PACK_KEYS},
                {**shared, OpField.OPCODE: RenderOpcode.ATTENTION},
            )
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
        elif isinstance(layer, Attend):
            copies[id(layer)] = Int8Attend(context)
        elif isinstance(layer, Snake):
            copies[id(layer)] = FusedSnake(layer, context)
    return copy.deepcopy(net, copies)


def _address(value: Tensor | nn.Module | None) -> int:
    assert isinstance(value, Tensor)
    return value.data_ptr()
