"""Whose timbre, for the flow: CAM++, a densely connected time-delay network over Kaldi mel energies.

A small 2-d front shrinks the frequency axis eightfold; then three blocks in which every layer adds a few
channels to all those before it. Each layer's local convolution is gated by its context: the mean of the clip
plus the mean of its two-second segment. Mean and deviation over time, and one projection, make the vector.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.chatterbox.encoders.config import XVectorConfig
from nightingale.models.layers.mel import KaldiFbank, MelConfig
from nightingale.models.layers.stft import too_short

SEGMENT_FRAMES = 100
MIN_FRAMES = 3
"""The first time-delay layer halves the frames, and a deviation needs two of them."""


class XVector(nn.Module):
    def __init__(self, config: XVectorConfig) -> None:
        super().__init__()
        self.config = config
        self.fbank = KaldiFbank(
            MelConfig(sample_rate_hz=16_000, fft_samples=512, hop_samples=160, bands=config.mel_bands)
        )
        self.head = Front(config.front_channels)
        channels = config.stem_channels
        parts: list[tuple[str, nn.Module]] = [
            ("tdnn", Stem(config.front_channels * (config.mel_bands // 8), channels))
        ]
        for index, (depth, dilation) in enumerate(zip(config.depths, config.dilations, strict=True), start=1):
            parts.append((f"block{index}", DenseBlock(depth, channels, config, dilation)))
            channels += depth * config.growth
            parts.append((f"transit{index}", Transit(channels, channels // 2)))
            channels //= 2
        parts += [
            ("out_nonlinear", norm_relu(channels)),
            ("stats", Statistics()),
            ("dense", Projection(2 * channels, config.embedding)),
        ]
        self.xvector = nn.Sequential(OrderedDict(parts))

    def forward(self, features: Tensor) -> Tensor:
        """(batch, frames, bands) of mean-free mel energies -> (batch, embedding), not normalised."""
        out: Tensor = self.xvector(self.head(features.transpose(1, 2)))
        return out

    @torch.no_grad()
    def embed(self, wav16k: Tensor) -> Tensor:
        """(samples,) at 16 kHz -> (embedding,)."""
        features = self.fbank(wav16k.unsqueeze(0))
        if features.shape[1] < MIN_FRAMES:
            hop = self.fbank.config.hop_samples
            raise too_short(wav16k.shape[0], self.fbank.frame_samples + (MIN_FRAMES - 1) * hop)
        vector: Tensor = self(features - features.mean(1, keepdim=True))[0]
        return vector


class Front(nn.Module):
    """(batch, bands, frames) -> (batch, channels · bands/8, frames): a 2-d residual net over the mel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.layer1 = nn.Sequential(Residual(channels, 2), Residual(channels, 1))
        self.layer2 = nn.Sequential(Residual(channels, 2), Residual(channels, 1))
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=(2, 1), padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x.unsqueeze(1))))
        x = self.layer2(self.layer1(x))
        return F.relu(self.bn2(self.conv2(x))).flatten(1, 2)


class Residual(nn.Module):
    """Two 3×3 convolutions around a shortcut; `stride` thins the bands, never the frames."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, stride=(stride, 1), padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut.append(nn.Conv2d(channels, channels, 1, stride=(stride, 1), bias=False))
            self.shortcut.append(nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class Stem(nn.Module):
    """The first time-delay layer: five frames wide, every second frame."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.linear = nn.Conv1d(inside, outside, 5, stride=2, padding=2, bias=False)
        self.nonlinear = norm_relu(outside)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.nonlinear(self.linear(x))
        return out


class DenseBlock(nn.Module):
    """Layers that each append `growth` channels to everything before them."""

    def __init__(self, depth: int, channels: int, config: XVectorConfig, dilation: int) -> None:
        super().__init__()
        for index in range(depth):
            layer = DenseLayer(channels + index * config.growth, config, dilation)
            self.add_module(f"tdnnd{index + 1}", layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = torch.cat((x, layer(x)), dim=1)
        return x


class DenseLayer(nn.Module):
    """Squeeze all channels to the bottleneck, then look along time."""

    def __init__(self, channels: int, config: XVectorConfig, dilation: int) -> None:
        super().__init__()
        self.nonlinear1 = norm_relu(channels)
        self.linear1 = nn.Conv1d(channels, config.bottleneck, 1, bias=False)
        self.nonlinear2 = norm_relu(config.bottleneck)
        self.cam_layer = ContextMask(config.bottleneck, config.growth, dilation)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cam_layer(self.nonlinear2(self.linear1(self.nonlinear1(x))))
        return out


class ContextMask(nn.Module):
    """A convolution over three frames, each channel gated by what the clip and its segment sound like."""

    def __init__(self, inside: int, outside: int, dilation: int) -> None:
        super().__init__()
        self.linear_local = nn.Conv1d(inside, outside, 3, padding=dilation, dilation=dilation, bias=False)
        self.linear1 = nn.Conv1d(inside, inside // 2, 1)
        self.linear2 = nn.Conv1d(inside // 2, outside, 1)

    def forward(self, x: Tensor) -> Tensor:
        segments = F.avg_pool1d(x, SEGMENT_FRAMES, SEGMENT_FRAMES, ceil_mode=True)
        segments = segments.repeat_interleave(SEGMENT_FRAMES, dim=-1)[..., : x.shape[-1]]
        context = F.relu(self.linear1(x.mean(-1, keepdim=True) + segments))
        local: Tensor = self.linear_local(x)
        return local * torch.sigmoid(self.linear2(context))


class Transit(nn.Module):
    """Between blocks: half the channels."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.nonlinear = norm_relu(inside)
        self.linear = nn.Conv1d(inside, outside, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.nonlinear(x))
        return out


class Statistics(nn.Module):
    """(batch, channels, frames) -> (batch, 2 · channels): mean and unbiased deviation over time."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x.mean(-1), x.std(-1)), dim=-1)


class Projection(nn.Module):
    """(batch, inside) -> (batch, outside), centred and scaled by what training saw."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.linear = nn.Conv1d(inside, outside, 1, bias=False)
        self.nonlinear = nn.Sequential(OrderedDict(batchnorm=nn.BatchNorm1d(outside, affine=False)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.nonlinear(self.linear(x.unsqueeze(-1)).squeeze(-1))
        return out


def norm_relu(channels: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(batchnorm=nn.BatchNorm1d(channels), relu=nn.ReLU()))
