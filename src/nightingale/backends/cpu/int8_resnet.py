"""The convolutions of the flow in int8, over frames: (frames, channels), as its transformer blocks have them.

Modules take and return (batch, channels, frames), like those whose place they take. What they return lies frame by
frame, so the next module finds its rows without copying them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nightingale.backends.cpu.int8_layers import CONTEXT, Int8Linear, KernelCall, contiguous
from nightingale.backends.cpu.kernels.int8_gemm import GROUP_OUTPUTS
from nightingale.backends.cpu.kernels.render_operations import LINEAR_OPCODES
from nightingale.backends.cpu.kernels.rows_linear import (
    LOCAL_PADDING,
    MAX_TAPS,
    ROWS_PER_PASS,
    After,
    RowsLinearOp,
    linear_scratch_bytes,
)
from nightingale.models.chatterbox.s3gen.estimator import ConvBlock, ResnetBlock, mish
from nightingale.models.layers.conv import CustomConv1d, supports_tap_products
from nightingale.models.layers.streaming_state import StreamingState
from nightingale.models.layers.weight_layout import release_pages


def as_frames(x: Tensor) -> Tensor:
    """Return (batch, channels, frames) as contiguous (batch, frames, channels)."""
    return contiguous(x.transpose(1, 2))


class Int8RowsConv1d(CustomConv1d):
    """A convolution as one product of each frame and its neighbours."""

    def __init__(self, plain: nn.Conv1d) -> None:
        super().__init__(plain)
        by_tap = plain.weight.detach().transpose(1, 2).flatten(1)  # (outputs, taps · inputs)
        linear = nn.Linear(by_tap.shape[1], by_tap.shape[0], bias=plain.bias is not None)
        linear.weight = nn.Parameter(by_tap, requires_grad=False)
        if plain.bias is not None:
            linear.bias = nn.Parameter(plain.bias.detach(), requires_grad=False)
        block = max(block for block in LINEAR_OPCODES if self.in_channels % block == 0)
        self.product = Int8Linear(linear, block)
        self.thread_bytes = linear_scratch_bytes(self.in_channels, block)
        release_pages(plain.weight)

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        if not supports_tap_products(layer) or isinstance(layer, CustomConv1d):
            return False
        has_kernel = layer.kernel_size[0] <= MAX_TAPS and layer.dilation[0] == 1
        return (
            has_kernel
            and layer.in_channels % min(LINEAR_OPCODES) == 0
            and layer.out_channels % GROUP_OUTPUTS == 0
        )

    def convolve_unpadded(self, x: Tensor) -> Tensor:
        return self._run(as_frames(x), left=0, count=x.shape[2] - self.kernel_size[0] + 1)

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        if self.right and state is not None:
            return super().forward(x, state)
        return self._run(*self.inputs(x, state), count=x.shape[2])

    def inputs(self, x: Tensor, state: StreamingState | None) -> tuple[Tensor, int]:
        """Return the frames that are read, and the number of zeros before them."""
        return (
            (as_frames(x), self.left) if state is None else (as_frames(state.prepend_inputs(x, self.left)), 0)
        )

    def _run(self, frames: Tensor, left: int, *, count: int) -> Tensor:
        out = frames.new_empty(len(frames), count, self.out_channels)
        for rows, result in zip(frames, out, strict=True):
            CONTEXT.run_all([self.operation(rows, result, left=left)], thread_bytes=self.thread_bytes)
        return out.transpose(1, 2)

    def operation(self, rows: Tensor, out: Tensor, *, left: int) -> KernelCall:
        """Return the operation that writes (frames, channels) to out; the first output reads `left` zeros."""
        (opcode, args), op = self.product.operation(rows, out), RowsLinearOp
        given = {op.K: self.in_channels, op.TAPS: self.kernel_size[0], op.PADDING: left, op.ROWS: len(out)}
        return opcode, {**args, **given}


class Int8ConvBlock(ConvBlock):
    """A convolution with its norm and Mish, which follow while its outputs are in a cache."""

    def __init__(self, plain: ConvBlock) -> None:
        nn.Module.__init__(self)
        self.block = nn.ModuleDict({"0": Int8RowsConv1d(plain.block["0"]), "2": plain.block["2"]})  # type: ignore[arg-type]

    @staticmethod
    def fits(block: nn.Module) -> bool:
        return isinstance(block, ConvBlock) and Int8RowsConv1d.fits(block.block["0"])

    @property
    def conv(self) -> Int8RowsConv1d:
        conv: Any = self.block["0"]
        return conv  # type: ignore[no-any-return]

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        frames, left = self.conv.inputs(x, state)
        out = x.new_empty(len(x), x.shape[2], self.conv.out_channels)
        added = x.new_zeros(self.conv.out_channels)
        for rows, result in zip(frames, out, strict=True):
            calls = [self.operation(rows, result, left=left, added=added)]
            CONTEXT.run_all(calls, thread_bytes=self.conv.thread_bytes)
        return out.transpose(1, 2)

    def operation(
        self, rows: Tensor, result: Tensor, *, left: int, added: Tensor, after: After = After.MISH
    ) -> KernelCall:
        """Return the operation that writes the block's output for rows, plus `added` (channels), to result."""
        places = torch.get_num_threads() * ROWS_PER_PASS
        convolved = CONTEXT.floats("convolved", places, self.conv.out_channels + LOCAL_PADDING)
        (opcode, args), norm, op = (
            self.conv.operation(rows, convolved, left=left),
            self.block["2"],
            RowsLinearOp,
        )
        given: dict[Any, Any] = {
            op.ROWS: len(result), op.OUT_IS_LOCAL: 1, op.AFTER: int(after), op.RESULT: result, op.ADDED: added,
            op.MISH_WEIGHT: norm.weight, op.MISH_BIAS: norm.bias,
        }  # fmt: skip
        return opcode, {**args, **given}


class Int8ResnetBlock(ResnetBlock):
    """A residual block of the estimator, whose sums are part of its convolution blocks."""

    block1: Int8ConvBlock
    block2: Int8ConvBlock
    res_conv: Int8RowsConv1d

    def __init__(self, plain: ResnetBlock) -> None:
        nn.Module.__init__(self)
        self.mlp, self.res_conv = plain.mlp, Int8RowsConv1d(plain.res_conv)
        self.block1, self.block2 = Int8ConvBlock(plain.block1), Int8ConvBlock(plain.block2)
        convs = self.res_conv, self.block1.conv, self.block2.conv
        self.thread_bytes = max(conv.thread_bytes for conv in convs)

    @staticmethod
    def fits(block: nn.Module) -> bool:
        if not isinstance(block, ResnetBlock) or isinstance(block, Int8ResnetBlock):
            return False
        convs = block.block1, block.block2
        return Int8RowsConv1d.fits(block.res_conv) and all(Int8ConvBlock.fits(conv) for conv in convs)

    def forward(self, x: Tensor, time: Tensor, state: StreamingState | None = None) -> Tensor:
        added: Tensor = self.mlp["1"](mish(time))
        frames = as_frames(x)
        if state is None:
            first, left = frames, self.block1.conv.left
        else:
            first, left = self.block1.conv.inputs(x, state)
        shape = len(x), x.shape[2], self.res_conv.out_channels
        inner, out = CONTEXT.floats("first_convolved", *shape), x.new_empty(*shape)
        for rows, plain_rows, result, h, own in zip(first, frames, out, inner, added, strict=True):
            calls = [
                self.res_conv.operation(plain_rows, result, left=0),
                self.block1.operation(rows, h, left=left, added=own),
            ]
            CONTEXT.run_all(calls, thread_bytes=self.thread_bytes)
        second, left = self.block2.conv.inputs(inner.transpose(1, 2), state)
        nothing = added.new_zeros(added.shape[1])
        for rows, result in zip(second, out, strict=True):
            call = self.block2.operation(rows, result, left=left, added=nothing, after=After.MISH_ADD)
            CONTEXT.run_all([call], thread_bytes=self.thread_bytes)
        return out.transpose(1, 2)
