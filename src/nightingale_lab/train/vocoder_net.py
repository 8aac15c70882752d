"""Hift's forward pass over Hift's own weights, laid out for training on a GPU.

It computes the same as models/chatterbox/hift/generator.py (tests/lab/train/test_vocoder.py) with three differences:
- time is the width of a channels-last image, because cuDNN's bfloat16 kernels need that layout and would
  otherwise transpose around every convolution;
- the small transforms (16 points) are matrix products with a fixed window sum, because torch.istft checks its
  window on the host, which a CUDA graph cannot capture;
- precision is explicit: the trunk is in bfloat16; f0, the first and the last layer, the source and the
  transforms are in float32, since rounding of log-magnitudes is audible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import ISTFT_HOP, ISTFT_SIZE
from nightingale.models.chatterbox.hift.generator import (
    BINS,
    MAGNITUDE_LIMIT,
    SAMPLE_LIMIT,
    Hift,
    ResBlock,
    Snake,
)
from nightingale.models.layers.conv import UpsamplingConv1d

Compile = Literal["none", "parts", "full"]
ALIGNED_CHANNELS = 24
"""The 18 channels of a spectrum, zero-padded to a multiple of eight for tensor cores."""


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """Apply Snake to (batch, channels, 1, time), in float32; return the dtype of x."""
    alpha, wide = alpha[None, :, None, None], x.float()
    return (wide + torch.sin(wide * alpha).square() / (alpha + 1e-9)).to(x.dtype)


class TrainingHift(nn.Module):
    """(batch, mel, T frames) and (batch, 1, 480·T) excitation -> (batch, 480·T) samples, for one fixed T."""

    analysis: Tensor
    synthesis: Tensor
    envelope: Tensor

    def __init__(self, net: Hift, frames: int, dtype: torch.dtype, *, compile_mode: Compile = "none") -> None:
        super().__init__()
        self.net, self.dtype = net, dtype
        device = net.window.device
        analysis, synthesis = _transforms(net.window.double().cpu())
        spectra = frames * CLOCKS.samples_per_frame // ISTFT_HOP + 1
        squares = net.window.double().cpu().square().expand(1, spectra, ISTFT_SIZE)
        envelope = overlap_add(squares)[:, ISTFT_SIZE // 2 : -(ISTFT_SIZE // 2)]
        self.register_buffer("analysis", analysis.float().to(device), persistent=False)
        self.register_buffer("synthesis", synthesis.float().to(device), persistent=False)
        self.register_buffer("envelope", envelope.float().to(device), persistent=False)
        self.snake: Callable[[Tensor, Tensor], Tensor] = (
            torch.compile(snake, dynamic=False) if compile_mode == "parts" else snake
        )
        self.trunk: Callable[[Tensor, Tensor], Tensor] = (
            torch.compile(self._trunk, dynamic=False) if compile_mode == "full" else self._trunk
        )

    def forward(self, mel: Tensor, source: Tensor) -> Tensor:
        half = ISTFT_SIZE // 2
        taps = F.pad(source, (half, half), mode="reflect").squeeze(1).unfold(1, ISTFT_SIZE, ISTFT_HOP)
        return self.trunk(mel, taps @ self.analysis)

    def _trunk(self, mel: Tensor, excitation: Tensor) -> Tensor:
        """excitation: (batch, 120·T + 1, 18)."""
        net, dtype = self.net, self.dtype
        spectrum = F.pad(excitation, (0, ALIGNED_CHANNELS - 2 * BINS)).to(dtype).transpose(1, 2).unsqueeze(2)
        x = _conv(mel.unsqueeze(2).contiguous(memory_format=torch.channels_last), net.conv_pre).to(dtype)
        last, kernels = len(net.ups) - 1, len(net.config.resblock_kernels)
        for stage, up in enumerate(net.ups):
            x = _upsample(F.leaky_relu(x, 0.1), up)
            if stage == last:
                x = torch.cat([x[..., 1:2], x], dim=-1)  # the mirrored pad of one step
            x = x + self._resblock(net.source_resblocks[stage], _conv(spectrum, net.source_downs[stage]))
            blocks = net.resblocks[stage * kernels : (stage + 1) * kernels]
            total = self._resblock(blocks[0], x)
            for block in blocks[1:]:
                total = total + self._resblock(block, x)
            x = total / kernels
        return self._synthesize(_conv(F.leaky_relu(x.float()), net.conv_post, outputs=ALIGNED_CHANNELS))

    def _resblock(self, block: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(block, ResBlock)
        for snake1, conv1, snake2, conv2 in zip(
            block.activations1, block.convs1, block.activations2, block.convs2, strict=True
        ):
            hidden = _conv(self._snake(x, snake1), conv1)
            x = x + _conv(self._snake(hidden, snake2), conv2)
        return x

    def _snake(self, x: Tensor, layer: nn.Module) -> Tensor:
        assert isinstance(layer, Snake)
        return self.snake(x, layer.alpha)

    def _synthesize(self, x: Tensor) -> Tensor:
        x = x.squeeze(2).transpose(1, 2)  # (batch, 120·T + 1, 24)
        magnitude = x[..., :BINS].exp().clamp(max=MAGNITUDE_LIMIT)
        phase = torch.sin(x[..., BINS : 2 * BINS])
        spectrum = torch.cat([magnitude * torch.cos(phase), magnitude * torch.sin(phase)], dim=-1)
        samples = overlap_add(spectrum @ self.synthesis)[:, ISTFT_SIZE // 2 : -(ISTFT_SIZE // 2)]
        return (samples / self.envelope).clamp(-SAMPLE_LIMIT, SAMPLE_LIMIT)


def _conv(x: Tensor, layer: nn.Module, *, outputs: int | None = None) -> Tensor:
    """Apply a Conv1d of Hift to (batch, channels, 1, time); additional input channels have zero weights."""
    assert isinstance(layer, nn.Conv1d)
    weight, bias = layer.weight, _bias(layer)
    extra_in, extra_out = x.shape[1] - layer.in_channels, (outputs or layer.out_channels) - layer.out_channels
    if extra_in or extra_out:
        weight = F.pad(weight, (0, 0, 0, extra_in, 0, extra_out))
        bias = F.pad(bias, (0, extra_out))
    left, right = getattr(layer, "left", 0), getattr(layer, "right", 0)
    x = F.pad(x, (left, right)) if left or right else x
    weight = weight.unsqueeze(2).to(x.dtype, memory_format=torch.channels_last)
    return F.conv2d(x, weight, bias.to(x.dtype), (1, layer.stride[0]), 0, (1, layer.dilation[0]))


def _upsample(x: Tensor, layer: nn.Module) -> Tensor:
    assert isinstance(layer, nn.ConvTranspose1d)
    weight = layer.weight.unsqueeze(2).to(x.dtype, memory_format=torch.channels_last)
    stride, padding = layer.stride[0], int(layer.padding[0])
    y = F.conv_transpose2d(x, weight, _bias(layer).to(x.dtype), (1, stride), (0, padding))
    # A negative pad, not a slice: its gradient keeps the layout.
    return F.pad(y, (0, x.shape[-1] * stride - y.shape[-1]))


def _transforms(window: Tensor) -> tuple[Tensor, Tensor]:
    """Return the windowed DFT (16, 18) and its inverse (18, 16); real parts come before imaginary parts."""
    n = torch.arange(ISTFT_SIZE, dtype=torch.float64)
    k = torch.arange(BINS, dtype=torch.float64)
    angle = 2 * math.pi * n[:, None] * k[None] / ISTFT_SIZE
    forward = torch.cat([angle.cos(), -angle.sin()], dim=1) * window[:, None]
    twice = torch.full((BINS,), 2.0, dtype=torch.float64)
    twice[0] = twice[-1] = 1.0  # the first and the last bin have no mirror image
    inverse = torch.cat([angle.cos() * twice, -angle.sin() * twice], dim=1).T / ISTFT_SIZE * window
    return forward, inverse


def overlap_add(frames: Tensor) -> Tensor:
    """Overlap-add (batch, count, 16) frames with a hop of 4 samples to (batch, 4·count + 12)."""
    overlap = ISTFT_SIZE // ISTFT_HOP
    parts = frames.reshape(*frames.shape[:2], overlap, ISTFT_HOP)
    total = F.pad(parts[:, :, 0], (0, 0, 0, overlap - 1))
    for i in range(1, overlap):
        total = total + F.pad(parts[:, :, i], (0, 0, i, overlap - 1 - i))
    return total.flatten(1)


@torch.no_grad()
def initialise(net: Hift) -> None:
    """Initialize near a quiet harmonic sound: small residual branches, log-magnitudes at the level of speech."""
    for module in net.modules():
        if isinstance(module, ResBlock):
            for conv in module.convs1:
                _spread(conv, 0.5)
            for conv in module.convs2:
                _spread(conv, 0.2)
        elif isinstance(module, UpsamplingConv1d):
            _spread(module, 1.2)  # compensates for leaky_relu
    nn.init.normal_(net.conv_pre.weight, std=0.01)
    _spread(net.conv_post, 0.1)
    _bias(net.conv_post)[:BINS] = -2.5
    nn.init.constant_(net.m_source.l_linear.weight, 1.2 / math.sqrt(net.config.harmonics))
    nn.init.zeros_(net.m_source.l_linear.bias)
    # Wide random weights, since the output is in Hz. Five times wider was slower to train (voicing error 0.08
    # instead of 0.02 after 300 steps on synthetic tones).
    nn.init.normal_(net.f0_predictor.classifier.weight, std=30.0 / math.sqrt(net.config.f0_channels))
    nn.init.constant_(net.f0_predictor.classifier.bias, 100.0)


def _spread(layer: nn.Module, gain: float) -> None:
    """Initialize weights that scale a unit input by about `gain`, with zero bias."""
    assert isinstance(layer, nn.Conv1d | nn.ConvTranspose1d)
    taps = layer.in_channels * layer.kernel_size[0]
    if isinstance(layer, nn.ConvTranspose1d):
        taps //= layer.stride[0]
    nn.init.normal_(layer.weight, std=gain / math.sqrt(taps))
    nn.init.zeros_(_bias(layer))


def _bias(layer: nn.Conv1d | nn.ConvTranspose1d) -> Tensor:
    """Return the bias, which every convolution of Hift has."""
    assert layer.bias is not None
    return layer.bias
