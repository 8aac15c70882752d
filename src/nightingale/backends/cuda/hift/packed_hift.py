"""HiFT from mel and excitation to the columns of its inverse STFT, in Triton kernels (hift_kernels.py).

Weights are packed once for a model. Reference: the library calls in bucketed_vocoder.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nightingale.backends.cuda.hift import hift_kernels as kernels
from nightingale.backends.cuda.triton_support import compiling_ahead, launch, pdl_options
from nightingale.models.chatterbox.hift.config import RESBLOCK_DILATIONS, UPSAMPLE_RATES
from nightingale.models.chatterbox.hift.generator import BINS, Hift
from nightingale.models.layers.conv import UpsamplingConv1d, padding_of

COLUMNS = math.prod(UPSAMPLE_RATES)
"""Columns of the excitation's STFT per mel frame; there is one more at the end."""
SLOPE, LAST_SLOPE = 0.1, 0.01
"""Slopes of the leaky ReLU before an upsampling, and before the last layer."""


class ConvTile(NamedTuple):
    """Sizes of a convolution's tiles."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int = 3
    registers: int | None = None
    """The limit for a thread; the compiler's own by default."""


TILES = (
    ConvTile(128, 128, 64, warps=8),
    ConvTile(128, 64, 64, warps=4),
    ConvTile(64, 64, 64, warps=4),
    ConvTile(32, 32, 64, warps=4),
)
"""From the largest to the smallest, with blocks of inputs in float16."""
PROGRAMS = 132
"""The number of tiles that fill a GPU: an H200 has so many processors."""


def conv_tile(rows: int, sequences: int, outputs: int, *, wide: bool) -> ConvTile:
    """Return the tiles of a convolution: the largest of which there are enough.

    rows: of one of `sequences`, which are the windows of all planes; wide: four bytes per value.
    """
    limit = max(16, 1 << (outputs - 1).bit_length())
    for tile in TILES:
        programs = sequences * -(-rows // tile.rows) * -(-outputs // tile.outputs)
        if tile.outputs <= max(64, limit) and programs >= PROGRAMS:
            break
    return tile._replace(outputs=min(tile.outputs, limit), inputs=tile.inputs // 2 if wide else tile.inputs)


def _block(inputs: int, wanted: int) -> int:
    """Return the size of blocks of inputs, a power of two: it divides their number, or there is one block."""
    divisor = inputs & -inputs
    return min(wanted, divisor) if divisor >= 16 else max(16, 1 << (inputs - 1).bit_length())


class PackedConv(NamedTuple):
    """Packed weights of a convolution, or of one for each plane."""

    weight: Tensor
    """(taps of all planes, outputs, inputs)."""
    bias: Tensor
    """(planes, outputs) in float32."""
    table: Tensor
    """(planes, 3) int32: the number of the first tap, the number of taps, and the rows of padding before."""
    dilation: int = 1
    stride: int = 1


class ResBlockPair(NamedTuple):
    """Two convolutions and, of each, the Snake before it: (planes, 2, channels), α and 1 / α."""

    snake1: Tensor
    conv1: PackedConv
    snake2: Tensor
    conv2: PackedConv


class PackedStage(NamedTuple):
    rate: int
    """Output rows per input row."""
    up: PackedConv
    down: PackedConv
    source: list[ResBlockPair]
    blocks: list[ResBlockPair]


class PackedHift:
    """dtype: of stored values; float32 products are in TF32 if cuDNN's would be."""

    @torch.no_grad()
    def __init__(self, hift: Hift, dtype: torch.dtype) -> None:
        self.device, self.dtype, self._bands = hift.window.device, dtype, hift.config.mel_bands
        self._options: dict[str, Any] = {"PRECISION": "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"}
        self._options |= pdl_options(self.device)
        self._pre, self._post = self._layer([hift.conv_pre]), self._layer([hift.conv_post])
        self._stages = []
        for stage, up in enumerate(hift.ups):
            assert isinstance(up, UpsamplingConv1d)
            # The planes with most taps start first, so that none of them is left at the end.
            blocks: list[Any] = sorted(hift.blocks_of(stage), key=lambda b: -b.convs1[0].kernel_size[0])
            self._stages.append(
                PackedStage(
                    up.stride[0],
                    self._upsampling(up),
                    self._layer([hift.source_downs[stage]]),
                    self._pairs([hift.source_resblocks[stage]]),
                    self._pairs(blocks),
                )
            )

    def _layer(self, convs: Sequence[nn.Module]) -> PackedConv:
        """Pack convolutions of the same dilation as planes."""
        weights, table, first = [], [], 0
        for conv in convs:
            assert isinstance(conv, nn.Conv1d)
            weights.append(conv.weight.permute(2, 0, 1))
            table.append([first, conv.kernel_size[0], padding_of(conv)[0]])
            first += conv.kernel_size[0]
        bias = torch.stack([conv.bias for conv in convs])  # type: ignore[misc]
        return self._packed(torch.cat(weights), bias, table, convs[0])  # type: ignore[arg-type]

    def _upsampling(self, up: UpsamplingConv1d) -> PackedConv:
        """Return a transposed convolution as one with `stride` times the outputs.

        Output row stride · i + phase is the sum over input rows j of their products with tap
        phase + padding - stride · (j - i), where there is one.
        """
        taps, stride, padding = up.kernel_size[0], up.stride[0], int(up.padding[0])
        reach = range(-((taps - 1 - padding) // stride), (stride - 1 + padding) // stride + 1)  # of j - i
        inputs, outputs, _ = up.weight.shape
        weight = up.weight.new_zeros(len(reach), stride, outputs, inputs)
        for at, offset in enumerate(reach):
            for phase in range(stride):
                tap = phase + padding - stride * offset
                if 0 <= tap < taps:
                    weight[at, phase] = up.weight[..., tap].T
        assert up.bias is not None
        bias = up.bias.repeat(stride)[None]
        return self._packed(weight.flatten(1, 2), bias, [[0, len(reach), -reach[0]]], None)

    def _packed(
        self, weight: Tensor, bias: Tensor, table: list[list[int]], conv: nn.Conv1d | None
    ) -> PackedConv:
        weight = weight.to(torch.float32).contiguous()
        if self.dtype == torch.float32 and self._options["PRECISION"] == "tf32":
            weight = ((weight.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
        numbers = torch.tensor(table, dtype=torch.int32, device=self.device)
        spacing = (1, 1) if conv is None else (conv.dilation[0], conv.stride[0])
        return PackedConv(weight.to(self.dtype), bias.float().contiguous(), numbers, *spacing)

    def _pairs(self, blocks: Sequence[Any]) -> list[ResBlockPair]:
        """Pack resblocks as planes."""
        return [
            ResBlockPair(
                _snakes([block.activations1[pair] for block in blocks]),
                self._layer([block.convs1[pair] for block in blocks]),
                _snakes([block.activations2[pair] for block in blocks]),
                self._layer([block.convs2[pair] for block in blocks]),
            )
            for pair in range(len(RESBLOCK_DILATIONS))
        ]

    @torch.inference_mode()
    def compile(self, windows: int, frames: int) -> None:
        """Compile the kernels for a batch of this size, at the same time on all cores."""
        # Not on the meta device, where torch would first import its symbolic shapes: a second or more.
        with compiling_ahead() as possible, self.device:
            if possible:
                mel = torch.empty(windows, self._bands, frames)
                excitation = torch.empty(windows, COLUMNS * frames + 1, 2 * BINS)
                self.columns(mel, excitation, torch.empty(windows, dtype=torch.int64))

    def columns(self, mel: Tensor, excitation: Tensor, frames: Tensor) -> Tensor:
        """Return the last layer's (windows, columns, 18) in float32.

        mel: (windows, bands, frames); excitation: its STFT, (windows, columns, 18); frames: (windows,), the real
        ones. Columns beyond a window's end are undefined.
        """
        frames, options = frames.to(torch.int32), self._options
        spectrum = excitation.to(self.dtype)[None]
        x = mel.transpose(1, 2).to(self.dtype)[None].contiguous()
        a = _Convolutions(frames, options, (1, 0))(x, self._pre, slope=SLOPE)
        rate = 1
        for stage, number in zip(self._stages, range(len(self._stages) - 1, -1, -1), strict=True):
            extra = int(number == 0)
            length = a.shape[2] * stage.rate + extra
            both = a.new_empty(2, len(mel), length, stage.down.weight.shape[1])
            _Convolutions(frames, options, (rate, 0))(a, stage.up, out=both[1:], offset=extra)
            if extra:
                both[1, :, 0] = both[1, :, 2]  # reflected: an STFT has one more column than hops
            rate *= stage.rate
            convolve = _Convolutions(frames, options, (rate, extra))
            a = convolve(
                spectrum, stage.down, x_end=(COLUMNS, 1), out=both[:1], snakes=stage.source[0].snake1[:, None]
            )
            a = _stage(convolve, stage, both, a, LAST_SLOPE if extra else SLOPE)
        out = torch.empty(1, len(mel), length, 2 * BINS, device=a.device)
        convolve(a, self._post, out=out)
        return out[0]


def _stage(convolve: _Convolutions, stage: PackedStage, both: Tensor, a: Tensor, slope: float) -> Tensor:
    """Return a stage's result, activated. both: input of the excitation's resblock, which a is the activation
    of, and the upsampled mel."""
    own, x, streams = both[:1], torch.empty_like(both[:1]), None
    for pair, following in zip(stage.source, [*stage.source[1:], None], strict=True):
        h = convolve(a, pair.conv1, snakes=pair.snake2[:, None])
        if following is not None:
            a = convolve(h, pair.conv2, others=own, out=own, snakes=following.snake1[:, None])
        else:
            a = convolve(h, pair.conv2, others=both, out=x, snakes=stage.blocks[0].snake1[None])
    for pair, following in zip(stage.blocks, [*stage.blocks[1:], None], strict=True):
        h = convolve(a, pair.conv1, snakes=pair.snake2[:, None])
        if following is None:
            return convolve(h, pair.conv2, others=x, summed=True, slope=slope)
        out = h.new_empty(h.shape) if streams is None else streams
        a = convolve(h, pair.conv2, others=x, out=out, snakes=following.snake1[:, None])
        x = streams = out
    raise AssertionError("a resblock has pairs")


def _snakes(modules: Sequence[nn.Module]) -> Tensor:
    alpha = torch.stack([snake.alpha for snake in modules]).float()  # type: ignore[misc]
    return torch.stack([alpha, (alpha + 1e-9).reciprocal()], dim=1)


class _Convolutions:
    """Convolutions whose results have frames · rate + extra real rows in a window; end: (rate, extra)."""

    def __init__(self, frames: Tensor, options: dict[str, Any], end: tuple[int, int]) -> None:
        self._frames, self._options, self._end = frames, options, end

    def __call__(
        self,
        x: Tensor,
        layer: PackedConv,
        *,
        x_end: tuple[int, int] | None = None,
        others: Tensor | None = None,
        summed: bool = False,
        out: Tensor | None = None,
        offset: int = 0,
        snakes: Tensor | None = None,
        slope: float | None = None,
    ) -> Tensor:
        """Return the activated convolution of x (planes, windows, rows, inputs), undefined if there is none.

        Args:
            x: The inputs of all planes, or of each.
            layer: The weights.
            x_end: The real rows of x, if they are not those of the result.
            others: Summands (planes, windows, rows, outputs): one for all planes, one for each, or, if the
                result has one plane, all of them.
            summed: The result is the mean of the planes.
            out: Where the result is written without activation. It may be one of `others`.
            offset: The row of `out` where a window begins.
            snakes: (planes, activations of each, 2, outputs).
            slope: Of the leaky ReLU.
        """
        planes = 1 if summed else len(layer.table)
        (_, windows, x_length, inputs), outputs = x.shape, layer.weight.shape[1]
        rows = x_length if layer.stride == 1 or out is None else out.shape[2]
        length, width = (rows, outputs) if out is None else out.shape[2:]
        count = 0 if snakes is None else snakes.shape[1]
        active = x.new_empty(planes * max(count, int(slope is not None)), windows, rows, outputs)
        tile = conv_tile(rows, planes * windows, outputs, wide=x.dtype == torch.float32)
        launch(
            kernels._hift_conv_kernel,
            (-(-rows // tile.rows), -(-outputs // tile.outputs), planes * windows),
            x, layer.weight, layer.bias, layer.table, self._frames, x if others is None else others,
            layer.bias if snakes is None else snakes, x if out is None else out, active,
            windows, layer.dilation, windows * x_length if len(x) > 1 else 0, x_length,
            *(x_end or self._end), windows * length, length, offset, *self._end,
            0 if others is None or len(others) == 1 else windows * length,
            1 / len(layer.table) if summed else 1.0, slope or 0.0,
            C=inputs, N=outputs, WIDTH=width, STRIDE=layer.stride,
            BM=tile.rows, BN=tile.outputs, BK=_block(inputs, tile.inputs),
            SUMMED=len(layer.table) if summed else 1,
            OTHERS=0 if others is None else len(others) if planes == 1 else 1,
            SNAKES=count, LEAKY=slope is not None, STORE=out is not None,
            num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers, **self._options,
        )  # fmt: skip
        return active
