"""The critics of the vocoder: one looks at the wave folded by periods, one at spectra of three resolutions.

They exist in training only. Shapes are chosen for tensor cores: bfloat16, channels last, channel counts that
are multiples of eight; the two places where a channel count must be 1 or 2 (the way in and the way out) are
matrix products or patches instead of convolutions, because cuDNN is slow at those.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PERIODS = (2, 3, 5, 7, 11)
SLOPE = 0.1
PATCH_BINS = 4
"""Neighbouring frequency bins that enter the spectral critic as channels of one position."""
COMPRESSION_FLOOR = 1e-4

Verdict = tuple[Tensor, list[Tensor]]
"""Logits (1 is real, 0 is fake) and the feature maps on the way to them."""


class NormedConv2d(nn.Module):
    """A weight-normalised convolution in the input's precision, channels last."""

    def __init__(
        self, inputs: int, outputs: int, kernel: tuple[int, int], *, stride: tuple[int, int] = (1, 1)
    ) -> None:
        super().__init__()
        start = nn.Conv2d(inputs, outputs, kernel)
        self.direction = nn.Parameter(start.weight.detach().clone())
        self.gain = nn.Parameter(
            torch.linalg.vector_norm(self.direction.detach(), dim=(1, 2, 3), keepdim=True)
        )
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.stride, self.padding = stride, (kernel[0] // 2, kernel[1] // 2)

    def forward(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(self.direction, dim=(1, 2, 3), keepdim=True)
        weight = (self.direction * (self.gain / norm)).to(x.dtype, memory_format=torch.channels_last)
        return F.conv2d(x, weight, self.bias.to(x.dtype), self.stride, self.padding)


def _score(head: nn.Linear, x: Tensor) -> Tensor:
    """A 1×1 convolution to one channel, as the matrix product it is, in single precision."""
    return F.linear(x.permute(0, 2, 3, 1).float(), head.weight, head.bias)


class PeriodCritic(nn.Module):
    """The wave as rows of `period` samples, convolved down each column."""

    KERNEL, STRIDE = 5, 3

    def __init__(self, period: int, channels: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__()
        self.period, self.dtype = period, dtype
        self.entry = nn.Linear(self.KERNEL, channels[0])
        widths = list(pairwise(channels))
        self.convs = nn.ModuleList(
            NormedConv2d(a, b, (self.KERNEL, 1), stride=(1 if i == len(widths) - 1 else self.STRIDE, 1))
            for i, (a, b) in enumerate(widths)
        )
        self.head = nn.Linear(channels[-1], 1)

    def forward(self, audio: Tensor) -> Verdict:
        rows = audio.shape[1] // self.period
        folded = audio[:, : rows * self.period].reshape(-1, rows, self.period)
        half = self.KERNEL // 2
        taps = F.pad(folded, (0, 0, half, half)).unfold(
            1, self.KERNEL, self.STRIDE
        )  # (batch, rows', period, 5)
        # Single precision where samples enter: bfloat16 would add noise 50 dB below them.
        x = F.leaky_relu(self.entry(taps), SLOPE).to(self.dtype).permute(0, 3, 1, 2)
        features = [x]
        for conv in self.convs:
            x = F.leaky_relu(conv(x), SLOPE)
            features.append(x)
        return _score(self.head, x), features


class SpectralCritic(nn.Module):
    """A complex spectrogram, its loudness compressed so that quiet highs are seen too."""

    def __init__(self, channels: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.convs = nn.ModuleList(
            [
                NormedConv2d(2 * PATCH_BINS, channels, (3, 3)),
                NormedConv2d(channels, channels, (3, 5), stride=(1, 2)),
                NormedConv2d(channels, channels, (3, 5), stride=(1, 2)),
                NormedConv2d(channels, channels, (3, 3)),
            ]
        )
        self.head = nn.Linear(channels, 1)

    def forward(self, spectrum: Tensor) -> Verdict:
        """spectrum: (batch, frames, bins, 2), scaled so that unit noise has unit power."""
        batch, frames, bins, _ = spectrum.shape
        groups = bins // PATCH_BINS
        kept = spectrum[:, :, : groups * PATCH_BINS]  # the bin at half the sample rate is left out
        power = kept.square().sum(-1, keepdim=True)
        small = kept * (power + COMPRESSION_FLOOR).pow(-0.3)
        x = small.reshape(batch, frames, groups, 2 * PATCH_BINS).to(self.dtype).permute(0, 3, 1, 2)
        features = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), SLOPE)
            features.append(x)
        return _score(self.head, x), features


class Critics(nn.Module):
    """All of them."""

    def __init__(
        self, *, resolutions: int, period_channels: Sequence[int], spectral_channels: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.periods = nn.ModuleList(PeriodCritic(p, period_channels, dtype) for p in PERIODS)
        self.spectra = nn.ModuleList(SpectralCritic(spectral_channels, dtype) for _ in range(resolutions))

    def forward(self, audio: Tensor, spectra: Sequence[Tensor]) -> list[Verdict]:
        return [critic(audio) for critic in self.periods] + [
            critic(spectrum) for critic, spectrum in zip(self.spectra, spectra, strict=True)
        ]


def critic_loss(real: list[Verdict], fake: list[Verdict]) -> Tensor:
    """Least squares: real towards 1, fake towards 0, summed over critics."""
    losses = [(1 - r).square().mean() + f.square().mean() for (r, _), (f, _) in zip(real, fake, strict=True)]
    return torch.stack(losses).sum()


def deception_loss(fake: list[Verdict]) -> Tensor:
    """What the generator wants: fake towards 1."""
    return torch.stack([(1 - scores).square().mean() for scores, _ in fake]).sum()


def feature_loss(real: list[Verdict], fake: list[Verdict]) -> Tensor:
    """Mean distance of feature maps, summed over critics and layers."""
    distances = [
        (r - f).abs().mean(dtype=torch.float32)
        for (_, reals), (_, fakes) in zip(real, fake, strict=True)
        for r, f in zip(reals, fakes, strict=True)
    ]
    return torch.stack(distances).sum()
