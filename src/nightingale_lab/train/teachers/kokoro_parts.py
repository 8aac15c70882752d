"""Building blocks of Kokoro (StyleTTS 2 with an iSTFT generator) for batches of unequal length.

Kokoro is published for one utterance at a time. On a GPU that is launch-bound, so every block here
takes a padded batch and the number of valid frames per utterance, and its result for each utterance is the
same as without padding: convolutions read zeros beyond the end, statistics count valid frames only,
LSTMs run packed.

Inside the decoder, time series are (batch, channels, 1, time): the fourth axis lets cuDNN use the
channels-last layout, which its tensor-core kernels need and which one-dimensional convolutions lack.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STYLE_DIM = 128
NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Span:
    """The real frames of a padded batch."""

    lengths: Tensor  # (B,) int64, on the compute device
    mask: Tensor  # (B, 1, 1, T), 1 for a real frame, in the series' dtype
    count: Tensor  # (B, 1, 1, 1) float32, real frames per utterance

    @staticmethod
    def of(lengths: Tensor, size: int, dtype: torch.dtype) -> Span:
        mask = torch.arange(size, device=lengths.device) < lengths[:, None]
        return Span(lengths, mask[:, None, None].to(dtype), lengths.view(-1, 1, 1, 1).float())

    def stretched(self, factor: int, extra: int = 0) -> Span:
        """The same utterances after upsampling by `factor` and padding by `extra` frames."""
        size = self.mask.shape[-1] * factor + extra
        return Span.of(self.lengths * factor + extra, size, self.mask.dtype)


def affine_norm(x: Tensor, mask: Tensor, count: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """Instance norm over real frames, scaled by 1 + gamma and shifted by beta, in float32."""
    x = x.float() * mask
    mean = x.sum(-1, keepdim=True) / count
    variance = ((x - mean) * mask).square().sum(-1, keepdim=True) / count
    scale = (1.0 + gamma) * torch.rsqrt(variance + NORM_EPS)
    return (x - mean) * scale + beta


def norm_leaky(x: Tensor, mask: Tensor, count: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    y = F.leaky_relu(affine_norm(x, mask, count, gamma, beta), 0.2)
    return (y * mask).to(x.dtype)


def norm_snake(x: Tensor, mask: Tensor, count: Tensor, gamma: Tensor, beta: Tensor, alpha: Tensor) -> Tensor:
    y = affine_norm(x, mask, count, gamma, beta)
    y = y + torch.sin(alpha * y).square() / alpha
    return (y * mask).to(x.dtype)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The two memory-bound functions, eager or compiled."""

    norm_leaky: Callable[..., Tensor] = norm_leaky
    norm_snake: Callable[..., Tensor] = norm_snake

    @staticmethod
    def compiled() -> Kernels:
        return Kernels(torch.compile(norm_leaky, dynamic=True), torch.compile(norm_snake, dynamic=True))


class StyleAffine(nn.Module):
    """The projection of the style vector to (gamma, beta) of one norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(STYLE_DIM, 2 * channels)

    def forward(self, style: Tensor) -> tuple[Tensor, Tensor]:
        gamma, beta = self.fc(style)[:, :, None, None].float().chunk(2, dim=1)
        return gamma, beta


def conv(inputs: int, outputs: int, kernel: int, *, dilation: int = 1, bias: bool = True) -> nn.Conv2d:
    pad = dilation * (kernel - 1) // 2
    return nn.Conv2d(inputs, outputs, (1, kernel), padding=(0, pad), dilation=(1, dilation), bias=bias)


class StyleBlock(nn.Module):
    """A residual block of the pitch, energy and spectral decoders; it can double the frame rate."""

    def __init__(self, inputs: int, outputs: int, *, upsample: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = StyleAffine(inputs), StyleAffine(outputs)
        self.conv1, self.conv2 = conv(inputs, outputs, 3), conv(outputs, outputs, 3)
        self.conv1x1 = conv(inputs, outputs, 1, bias=False) if inputs != outputs else None
        self.pool = (
            nn.ConvTranspose2d(
                inputs, inputs, (1, 3), (1, 2), padding=(0, 1), output_padding=(0, 1), groups=inputs
            )
            if upsample
            else None
        )

    def forward(self, x: Tensor, style: Tensor, span: Span, kernels: Kernels) -> tuple[Tensor, Span]:
        residual = kernels.norm_leaky(x, span.mask, span.count, *self.norm1(style))
        if self.pool is not None:
            span = span.stretched(2)
            residual = self.pool(residual) * span.mask
            x = x.repeat_interleave(2, dim=-1)
        residual = self.conv1(residual)
        residual = self.conv2(kernels.norm_leaky(residual, span.mask, span.count, *self.norm2(style)))
        shortcut = x if self.conv1x1 is None else self.conv1x1(x)
        return (residual + shortcut) * math.sqrt(0.5), span


class SnakeBlock(nn.Module):
    """A residual block of the waveform generator: three dilations, snake activations, styled norms."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        dilations = (1, 3, 5)
        self.convs1 = nn.ModuleList(conv(channels, channels, kernel, dilation=d) for d in dilations)
        self.convs2 = nn.ModuleList(conv(channels, channels, kernel) for _ in dilations)
        self.adain1 = nn.ModuleList(StyleAffine(channels) for _ in dilations)
        self.adain2 = nn.ModuleList(StyleAffine(channels) for _ in dilations)
        self.alpha1 = nn.ParameterList(torch.ones(1, channels, 1, 1) for _ in dilations)
        self.alpha2 = nn.ParameterList(torch.ones(1, channels, 1, 1) for _ in dilations)

    def forward(self, x: Tensor, style: Tensor, span: Span, kernels: Kernels) -> Tensor:
        for i in range(3):
            y = kernels.norm_snake(x, span.mask, span.count, *self.adain1[i](style), self.alpha1[i])
            y = self.convs1[i](y)
            y = kernels.norm_snake(y, span.mask, span.count, *self.adain2[i](style), self.alpha2[i])
            x = x + self.convs2[i](y)
        return x


def bidirectional(inputs: int) -> nn.LSTM:
    """Return a bidirectional LSTM of one layer, with 256 units in each direction."""
    return nn.LSTM(inputs, 256, batch_first=True, bidirectional=True)


def run_packed(lstm: nn.Module, x: Tensor, lengths_cpu: Tensor) -> Tensor:
    """Run a packed LSTM: (B, T, inputs) -> (B, T, 512), zeros beyond each length."""
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths_cpu, batch_first=True, enforce_sorted=False)
    out, _ = lstm(packed)
    return nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0]
