"""Layers of the networks over tensors (1, time, channels) of fixed shapes, in operations that XNNPACK has.

A graph is split where XNNPACK lacks an operation, and each part is a call of its own. So norms are products with a
vector of equal weights, and activations consist of exponentials and quotients. `coreml_layers.py` replaces those
that Core ML has as operations of its own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.chatterbox.s3gen.estimator import MISH_LINEAR_FROM

RMS_EPSILON = 1e-5
MASKED = -3e4
"""Added to the logit of a key that must not be attended to: its weight becomes zero. Twice that fits float16."""


class StaticLayerNorm(nn.Module):
    """A norm over the last axis."""

    mean: Tensor

    def __init__(self, norm: nn.LayerNorm, gain: float = 1.0) -> None:
        super().__init__()
        width, self.eps = norm.normalized_shape[0], norm.eps
        self.register_buffer("mean", torch.full((1, width), 1 / width))
        self.weight = nn.Parameter(gain * norm.weight.detach(), requires_grad=False)
        self.bias = nn.Parameter(gain * norm.bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x - F.linear(x, self.mean)
        return x * torch.rsqrt(F.linear(x * x, self.mean) + self.eps) * self.weight + self.bias


class StaticRmsNorm(nn.Module):
    """The norm of T3. Its mean is a product, which XNNPACK has, and not a reduction, which it has for images only."""

    mean: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("mean", torch.full((1, len(weight)), 1 / len(weight)))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(F.linear(x * x, self.mean) + RMS_EPSILON) * self.weight


class StaticCausalConv(nn.Module):
    """A convolution over time as one product with windows of its inputs."""

    def __init__(self, conv: nn.Conv1d) -> None:
        super().__init__()
        assert conv.bias is not None
        self.taps = conv.kernel_size[0]
        self.inputs = conv.in_channels
        weight = conv.weight.detach().permute(0, 2, 1).flatten(1)
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        self.bias = nn.Parameter(conv.bias.detach(), requires_grad=False)

    def forward(self, joined: Tensor) -> Tensor:
        """joined: (1, taps - 1 + time, inputs) -> (1, time, outputs)."""
        time = joined.shape[1] - self.taps + 1
        windows = torch.cat([joined[:, tap : tap + time] for tap in range(self.taps)], dim=-1)
        return F.linear(windows, self.weight, self.bias)


class StaticMish(nn.Module):
    """x·tanh(ln(1 + eˣ)), computed as in models/chatterbox/s3gen/estimator.py."""

    def forward(self, x: Tensor) -> Tensor:
        e = torch.exp(x.clamp(max=MISH_LINEAR_FROM))
        n = e * (e + 2)
        return x * (n / (n + 2))


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)
