"""Layers that Core ML has as operations of its own, in the place of those that are composed for XNNPACK.

They matter in float16: Core ML computes a norm's sums in a wider type, while squares of large values overflow, and
so do the exponentials that Mish is composed of.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.export.phone.static_layers import RMS_EPSILON, StaticLayerNorm, StaticMish, StaticRmsNorm


class CoremlLayerNorm(nn.Module):
    def __init__(self, norm: StaticLayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class CoremlRmsNorm(nn.Module):
    """The norm of [x, -x], whose mean is zero: Core ML has no RMS norm."""

    def __init__(self, norm: StaticRmsNorm) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([norm.weight, norm.weight]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        mirrored = torch.cat([x, -x], dim=-1)
        return F.layer_norm(mirrored, self.weight.shape, self.weight, None, RMS_EPSILON)[..., : x.shape[-1]]


class CoremlMish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.mish(x)


def use_coreml_layers(module: nn.Module) -> None:
    """Replace layers of a network, in place."""
    for name, child in module.named_children():
        if isinstance(child, StaticLayerNorm):
            setattr(module, name, CoremlLayerNorm(child))
        elif isinstance(child, StaticRmsNorm):
            setattr(module, name, CoremlRmsNorm(child))
        elif isinstance(child, StaticMish):
            setattr(module, name, CoremlMish())
        else:
            use_coreml_layers(child)
