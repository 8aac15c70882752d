"""CAM++: the flow's speaker vector, from a densely connected time-delay network over Kaldi mel energies.

A small 2-d network shrinks the frequency axis eightfold; then come three blocks in which every layer appends
a few channels to all those before it. Each layer's local convolution is gated by its context: the mean of the
clip plus the mean of its two-second segment. Mean and deviation over time are projected to the vector.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nightingale.models.chatterbox.encoders.config import XVectorConfig
from nightingale.models.layers.mel import KaldiFbank
from nightingale.models.layers.mel_config import KALDI_FBANK, clip_too_short

SEGMENT_FRAMES = 100
MIN_FRAMES = 3
"""The first time-delay layer halves the frames, and a deviation needs two."""


class XVector(nn.Module):
    def __init__(self, config: XVectorConfig) -> None:
        super().__init__()
        self.config = config
        self.fbank = KaldiFbank(replace(KALDI_FBANK, bands=config.mel_bands))
        self.head = SpectrogramResNet(config.front_channels)
        inputs, channels = config.front_channels * (config.mel_bands // 8), config.stem_channels
        stem = nn.Conv1d(inputs, channels, 5, stride=2, padding=2, bias=False)
        layers: dict[str, nn.Module] = {"tdnn": named(linear=stem, nonlinear=norm_relu(channels))}
        for index, (depth, dilation) in enumerate(zip(config.depths, config.dilations, strict=True), start=1):
            layers[f"block{index}"] = DenseBlock(depth, channels, config, dilation)
            channels += depth * config.growth
            halve = nn.Conv1d(channels, channels // 2, 1, bias=False)
            layers[f"transit{index}"] = named(nonlinear=norm_relu(channels), linear=halve)
            channels //= 2
        self.xvector = named(
            **layers,
            out_nonlinear=norm_relu(channels),
            stats=StatisticsPooling(),
            dense=named(
                linear=nn.Conv1d(2 * channels, config.embedding, 1, bias=False),
                flatten=nn.Flatten(),
                nonlinear=named(batchnorm=nn.BatchNorm1d(config.embedding, affine=False)),
            ),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Embed mean-free mel energies (batch, frames, bands) as (batch, embedding), not normalized."""
        return self.xvector(self.head(features.transpose(1, 2)))

    @torch.no_grad()
    def embed(self, wav16k: Tensor) -> Tensor:
        """Embed (samples,) at 16 kHz as (embedding,)."""
        features = self.fbank(wav16k.unsqueeze(0))
        if features.shape[1] < MIN_FRAMES:
            hop = self.fbank.config.hop_samples
            raise clip_too_short(wav16k.shape[0], self.fbank.frame_samples + (MIN_FRAMES - 1) * hop)
        return self(features - features.mean(1, keepdim=True))[0]


class SpectrogramResNet(nn.Module):
    """(batch, bands, frames) -> (batch, channels · bands/8, frames), by 2-d residual blocks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.layer1 = nn.Sequential(SpectrogramResBlock(channels, 2), SpectrogramResBlock(channels, 1))
        self.layer2 = nn.Sequential(SpectrogramResBlock(channels, 2), SpectrogramResBlock(channels, 1))
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=(2, 1), padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x.unsqueeze(1))))
        x = self.layer2(self.layer1(x))
        return F.relu(self.bn2(self.conv2(x))).flatten(1, 2)


class SpectrogramResBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut; `stride` applies to bands only."""

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


class DenseBlock(nn.Module):
    """Layers that each append `growth` channels to their input: a bottleneck, then a gated convolution."""

    def __init__(self, depth: int, channels: int, config: XVectorConfig, dilation: int) -> None:
        super().__init__()
        for index in range(depth):
            inputs = channels + index * config.growth
            layer = named(
                nonlinear1=norm_relu(inputs),
                linear1=nn.Conv1d(inputs, config.bottleneck, 1, bias=False),
                nonlinear2=norm_relu(config.bottleneck),
                cam_layer=ContextGatedConv(config.bottleneck, config.growth, dilation),
            )
            self.add_module(f"tdnnd{index + 1}", layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = torch.cat((x, layer(x)), dim=1)
        return x


class ContextGatedConv(nn.Module):
    """A convolution over three frames whose channels are gated by the mean of the clip and its segment."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.linear_local = nn.Conv1d(inputs, outputs, 3, padding=dilation, dilation=dilation, bias=False)
        self.linear1 = nn.Conv1d(inputs, inputs // 2, 1)
        self.linear2 = nn.Conv1d(inputs // 2, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        segments = F.avg_pool1d(x, SEGMENT_FRAMES, SEGMENT_FRAMES, ceil_mode=True)
        segments = segments.repeat_interleave(SEGMENT_FRAMES, dim=-1)[..., : x.shape[-1]]
        context = F.relu(self.linear1(x.mean(-1, keepdim=True) + segments))
        return self.linear_local(x) * torch.sigmoid(self.linear2(context))


class StatisticsPooling(nn.Module):
    """(batch, channels, frames) -> (batch, 2 · channels, 1): mean and unbiased deviation over time."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x.mean(-1, keepdim=True), x.std(-1, keepdim=True)), dim=1)


def named(**layers: nn.Module) -> nn.Sequential:
    """Return layers in sequence under the checkpoint's names."""
    return nn.Sequential(OrderedDict(layers))


def norm_relu(channels: int) -> nn.Sequential:
    return named(batchnorm=nn.BatchNorm1d(channels), relu=nn.ReLU())
