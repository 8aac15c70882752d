"""HiFT's generator: mel and excitation to samples, through three upsampling stages and an inverse STFT."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.chatterbox.hift.config import (
    ISTFT_HOP,
    ISTFT_SIZE,
    RESBLOCK_DILATIONS,
    UPSAMPLE_KERNELS,
    UPSAMPLE_RATES,
    HiftConfig,
)
from nightingale.models.chatterbox.hift.source import F0Predictor, HarmonicSource
from nightingale.models.layers.conv import PaddedConv1d, UpsamplingConv1d, same_conv
from nightingale.models.layers.mel import hann_window

BINS = ISTFT_SIZE // 2 + 1
MAGNITUDE_LIMIT = 100.0
SAMPLE_LIMIT = 0.99


class Snake(nn.Module):
    """The periodic activation x + sin²(αx)/α."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        alpha = self.alpha[None, :, None]
        return x + torch.sin(x * alpha).square() / (alpha + 1e-9)

    def write(self, x: Tensor, out: Tensor) -> None:
        """Write the result into `out`, in fewer passes and without gradients."""
        alpha = self.alpha[None, :, None]
        torch.mul(x, alpha, out=out).sin_().square_()
        torch.addcmul(x, out, (alpha + 1e-9).reciprocal_(), out=out)


class ResBlock(nn.Module):
    """Three residual pairs of dilated convolutions."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()

        def convs(dilations: tuple[int, ...]) -> nn.ModuleList:
            return nn.ModuleList(
                same_conv(channels, channels, kernel, dilation=d, causal=False) for d in dilations
            )

        def snakes() -> nn.ModuleList:
            return nn.ModuleList(Snake(channels) for _ in RESBLOCK_DILATIONS)

        self.convs1, self.convs2 = convs(RESBLOCK_DILATIONS), convs((1,) * len(RESBLOCK_DILATIONS))
        self.activations1, self.activations2 = snakes(), snakes()

    def forward(self, x: Tensor) -> Tensor:
        for snake1, conv1, snake2, conv2 in zip(
            self.activations1, self.convs1, self.activations2, self.convs2, strict=True
        ):
            x = x + conv2(snake2(conv1(snake1(x))))
        return x


class Hift(nn.Module):
    """(batch, mel, T frames) and an excitation of 480·T samples -> (batch, 480·T) samples."""

    window: Tensor

    def __init__(self, config: HiftConfig) -> None:
        super().__init__()
        self.config = config
        self.f0_predictor = F0Predictor(config)
        self.m_source = HarmonicSource()
        self.conv_pre = same_conv(config.mel_bands, config.base_channels, 7, causal=False)
        self.ups, self.source_downs = nn.ModuleList(), nn.ModuleList()
        self.source_resblocks, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for stage, (rate, kernel) in enumerate(zip(UPSAMPLE_RATES, UPSAMPLE_KERNELS, strict=True)):
            channels = config.base_channels >> (stage + 1)
            self.ups.append(UpsamplingConv1d(2 * channels, channels, kernel, rate))
            self.source_downs.append(_source_down(channels, stage))
            self.source_resblocks.append(ResBlock(channels, config.source_kernels[stage]))
            self.resblocks.extend(ResBlock(channels, k) for k in config.resblock_kernels)
        self.conv_post = same_conv(channels, 2 * BINS, 7, causal=False)
        self.register_buffer("window", hann_window(ISTFT_SIZE), persistent=False)

    def blocks_of(self, stage: int) -> list[nn.Module]:
        """Return a stage's blocks, not as a slice of the ModuleList, which would be a new module."""
        kernels = len(self.config.resblock_kernels)
        return [self.resblocks[index] for index in range(stage * kernels, (stage + 1) * kernels)]

    def forward(self, mel: Tensor, source: Tensor) -> Tensor:
        spectrum = to_spectrum(self.log_spectrum(mel, source))
        samples = torch.istft(spectrum, ISTFT_SIZE, ISTFT_HOP, window=self.window)
        return samples.clamp(-SAMPLE_LIMIT, SAMPLE_LIMIT)

    def log_spectrum(self, mel: Tensor, source: Tensor) -> Tensor:
        """Return log magnitudes and phases (batch, 18, 120·T + 1)."""
        spectrum = torch.stft(
            source.squeeze(1), ISTFT_SIZE, ISTFT_HOP, window=self.window, return_complex=True
        )
        excitation = torch.cat([spectrum.real, spectrum.imag], dim=1)  # (batch, 18, 120·T + 1)
        x = self.conv_pre(mel)
        last = len(self.ups) - 1
        for stage, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, 0.1))
            if stage == last:
                x = F.pad(x, (1, 0), mode="reflect")  # a centred STFT has one more frame than hops
            x = x + self.source_resblocks[stage](self.source_downs[stage](excitation))
            blocks = self.blocks_of(stage)
            x = sum(block(x) for block in blocks) / len(blocks)
        return self.conv_post(F.leaky_relu(x))  # slope 0.01 here, 0.1 above


def to_spectrum(x: Tensor) -> Tensor:
    """Convert the last layer's (batch, 18, columns), log magnitude and phase, to a complex spectrum."""
    magnitude = x[:, :BINS].exp().clamp(max=MAGNITUDE_LIMIT)
    phase = torch.sin(x[:, BINS:])
    return torch.complex(magnitude * torch.cos(phase), magnitude * torch.sin(phase))


def _source_down(channels: int, stage: int) -> nn.Module:
    """Return the layer that brings the excitation's spectrum to the rate of an upsampling stage."""
    stride = math.prod(UPSAMPLE_RATES[stage + 1 :])
    if stride == 1:
        return nn.Conv1d(2 * BINS, channels, 1)
    half = stride // 2
    return PaddedConv1d(2 * BINS, channels, 2 * stride, left=half, right=half, stride=stride)
