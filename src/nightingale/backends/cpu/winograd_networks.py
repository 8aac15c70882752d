"""The vocoder in int8, and in float32 with half the multiplications (kernels/winograd_conv1d.py).

The convolutions of the residual blocks, nine tenths of the vocoder's work, are replaced; everything else is shared.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from nightingale.backends.cpu.bf16 import with_parts
from nightingale.backends.cpu.int8_layers import CONTEXT, FusedConv1d, FusedSnake, Int8Conv1d
from nightingale.backends.cpu.kernels import winograd_conv1d
from nightingale.backends.cpu.kernels.render_operations import RenderOpcode
from nightingale.backends.cpu.kernels.winograd_conv1d import (
    MAX_DILATION,
    MAX_GROUPS,
    MAX_PARTS,
    OUTPUT_BLOCK,
    TILE,
    WinogradOp,
)
from nightingale.models.chatterbox.hift.generator import Hift, ResBlock
from nightingale.models.layers.conv import CustomConv1d, supports_tap_products
from nightingale.models.layers.weight_layout import release_pages


class WinogradConv1d(FusedConv1d):
    def __init__(self, plain: nn.Conv1d) -> None:
        super().__init__(plain)
        hat = winograd_conv1d.transform_weight(plain.weight.detach().numpy())
        bias = torch.zeros(plain.out_channels) if plain.bias is None else plain.bias.detach().clone()
        self.register_buffer("hat", torch.from_numpy(hat))
        self.register_buffer("bias", bias)
        self.groups_of_taps = hat.shape[2]
        release_pages(plain.weight)

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        if not supports_tap_products(layer) or isinstance(layer, CustomConv1d):
            return False
        small = layer.dilation[0] <= MAX_DILATION and layer.kernel_size[0] <= MAX_GROUPS * TILE
        return small and layer.out_channels % (MAX_PARTS * OUTPUT_BLOCK) == 0

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
        out, op = x.new_empty(x.shape[0], self.out_channels, columns), WinogradOp
        groups, dilation = self.groups_of_taps, self.dilation[0]
        tiles = winograd_conv1d.tiles_per_phase(columns, groups, dilation)
        args: dict[Any, Any] = {
            op.W: self.hat, op.BIAS: self.bias, op.X_STRIDE: x.stride(1), op.LENGTH: x.shape[2], op.LEFT: left,
            op.CHANNELS: self.in_channels, op.COLUMNS: columns, op.OUTPUTS: self.out_channels,
            op.GROUPS: groups, op.DILATION: dilation, op.TILES: tiles,
            op.PARTS: winograd_conv1d.parts_of_outputs(columns, tiles, dilation),
            op.HAS_SNAKE: int(snake is not None), op.HAS_RESIDUAL: int(residual is not None),
        }  # fmt: skip
        if snake is not None:
            args |= {op.ALPHA: snake.alpha, op.INVERSE_ALPHA: snake.inverse}
        thread_bytes = winograd_conv1d.scratch_bytes(self.in_channels, self.out_channels)
        for number, (row, result) in enumerate(zip(x, out, strict=True)):
            args |= {op.X: row, op.OUT: result}
            if residual is not None:
                args[op.RESIDUAL] = residual[number]
            CONTEXT.run(args, RenderOpcode.WINOGRAD_CONV1D, thread_bytes=thread_bytes)
        return out


class WinogradResBlock(ResBlock):
    """A residual block whose activations and sums are part of its convolutions."""

    conv_class: type[WinogradConv1d | Int8Conv1d] = WinogradConv1d

    def __init__(self, plain: ResBlock) -> None:
        nn.Module.__init__(self)
        for name, part in plain.named_children():
            make: Any = FusedSnake if name.startswith("activations") else self.conv_class
            self.add_module(name, nn.ModuleList(make(layer) for layer in part.children()))

    @classmethod
    def fits(cls, block: nn.Module) -> bool:
        convs = (layer for layer in block.modules() if isinstance(layer, nn.Conv1d))
        return isinstance(block, ResBlock) and all(cls.conv_class.fits(layer) for layer in convs)

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        layers: list[Any] = [self.activations1, self.convs1, self.activations2, self.convs2]
        for snake1, conv1, snake2, conv2 in zip(*layers, strict=True):
            x = conv2.same(conv1.same(x, snake1), snake2, residual=x)
        return x


class Int8ResBlock(WinogradResBlock):
    conv_class = Int8Conv1d


def int8_vocoder(plain: Hift) -> Hift:
    """Return a vocoder with int8 residual blocks that shares everything else."""
    return _with_blocks(plain, Int8ResBlock)


def winograd_vocoder(plain: Hift) -> Hift:
    """Return a vocoder with float32 residual blocks that shares everything else."""
    return _with_blocks(plain, WinogradResBlock)


def _with_blocks(plain: Hift, block_class: type[WinogradResBlock]) -> Hift:
    copies: dict[int, Any] = {id(weight): weight for weight in (*plain.parameters(), *plain.buffers())}
    parts = {}
    for name in ("resblocks", "source_resblocks"):
        blocks: nn.Module = getattr(plain, name)
        copies |= {id(b): block_class(b) for b in blocks.children() if block_class.fits(b)}  # type: ignore[arg-type]
        parts[name] = copy.deepcopy(blocks, copies)
    return with_parts(plain, **parts)
