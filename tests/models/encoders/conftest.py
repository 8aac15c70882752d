"""A synthetic clip and synthetic weights, the same for upstream's classes and ours without a file."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
import torch
from synthetic_clip import scatter, voice_like
from torch import Tensor, nn


def fill(module: nn.Module) -> nn.Module:
    """Fill the state dict with values that depend on names and shapes only; return it in eval mode."""
    for name, tensor in module.state_dict().items():
        if not tensor.is_floating_point():
            continue
        noise = torch.from_numpy(scatter(tensor.numel(), zlib.crc32(name.encode()))).view(tensor.shape)
        if tensor.dim() > 1:
            noise *= (3.0 / tensor[0].numel()) ** 0.5
        elif name.endswith(("weight", "running_var")):
            noise = 1 + 0.4 * noise
        else:
            noise *= 0.1
        tensor.copy_(noise)
    return module.eval()


@pytest.fixture(scope="session")
def clip() -> Callable[[float, int], Tensor]:
    return lambda seconds, rate_hz: torch.from_numpy(voice_like(seconds, rate_hz))


@pytest.fixture(scope="session")
def filled() -> Callable[[nn.Module], nn.Module]:
    return fill
