"""The discriminators of the vocoder: multi-period on the waveform, and on spectra of three resolutions.

They are used in training only. Shapes suit tensor cores: bfloat16, channels last, channel counts that are
multiples of eight. The first and last layers, with 1 or 2 channels, are matrix products or patches, because cuDNN
is slow at such convolutions.
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
"""Neighbouring frequency bins that are the channels of one position."""
COMPRESSION_FLOOR = 1e-4

DiscriminatorOutput = tuple[Tensor, list[Tensor]]
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


def judge_patches(convs: nn.ModuleList, head: nn.Linear, x: Tensor) -> DiscriminatorOutput:
    """Return the logits of all positions after some convolutions, and the feature map after each."""
    features = []
    for conv in convs:
        x = F.leaky_relu(conv(x), SLOPE)
        features.append(x)
    return _score(head, x), features


class PeriodDiscriminator(nn.Module):
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

    def forward(self, audio: Tensor) -> DiscriminatorOutput:
        rows = audio.shape[1] // self.period
        folded = audio[:, : rows * self.period].reshape(-1, rows, self.period)
        half = self.KERNEL // 2
        taps = F.pad(folded, (0, 0, half, half)).unfold(
            1, self.KERNEL, self.STRIDE
        )  # (batch, rows', period, 5)
        # Single precision where samples enter: bfloat16 would add noise 50 dB below them.
        x = F.leaky_relu(self.entry(taps), SLOPE).to(self.dtype).permute(0, 3, 1, 2)
        logits, features = judge_patches(self.convs, self.head, x)
        return logits, [x, *features]


class SpectralDiscriminator(nn.Module):
    """A discriminator of complex spectrograms, with magnitudes compressed so that quiet high bands count."""

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

    def forward(self, spectrum: Tensor) -> DiscriminatorOutput:
        """spectrum: (batch, frames, bins, 2), scaled so that unit noise has unit power."""
        batch, frames, bins, _ = spectrum.shape
        groups = bins // PATCH_BINS
        kept = spectrum[:, :, : groups * PATCH_BINS]  # without the Nyquist bin
        power = kept.square().sum(-1, keepdim=True)
        small = kept * (power + COMPRESSION_FLOOR).pow(-0.3)
        x = small.reshape(batch, frames, groups, 2 * PATCH_BINS).to(self.dtype).permute(0, 3, 1, 2)
        return judge_patches(self.convs, self.head, x)


class Discriminators(nn.Module):
    """All discriminators."""

    def __init__(
        self, *, resolutions: int, period_channels: Sequence[int], spectral_channels: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.periods = nn.ModuleList(PeriodDiscriminator(p, period_channels, dtype) for p in PERIODS)
        self.spectra = nn.ModuleList(
            SpectralDiscriminator(spectral_channels, dtype) for _ in range(resolutions)
        )

    def forward(self, audio: Tensor, spectra: Sequence[Tensor]) -> list[DiscriminatorOutput]:
        return [discriminator(audio) for discriminator in self.periods] + [
            discriminator(spectrum) for discriminator, spectrum in zip(self.spectra, spectra, strict=True)
        ]


def discriminator_loss(real: list[DiscriminatorOutput], fake: list[DiscriminatorOutput]) -> Tensor:
    """Return the least-squares loss, real towards 1 and fake towards 0, summed over discriminators."""
    losses = [(1 - r).square().mean() + f.square().mean() for (r, _), (f, _) in zip(real, fake, strict=True)]
    return torch.stack(losses).sum()


def generator_loss(fake: list[DiscriminatorOutput]) -> Tensor:
    """Return the adversarial loss of the generator, fake towards 1."""
    return torch.stack([(1 - logits).square().mean() for logits, _ in fake]).sum()


def feature_loss(real: list[DiscriminatorOutput], fake: list[DiscriminatorOutput]) -> Tensor:
    """Return the mean distance of feature maps, summed over discriminators and layers."""
    distances = [
        (r - f).abs().mean(dtype=torch.float32)
        for (_, reals), (_, fakes) in zip(real, fake, strict=True)
        for r, f in zip(reals, fakes, strict=True)
    ]
    return torch.stack(distances).sum()
