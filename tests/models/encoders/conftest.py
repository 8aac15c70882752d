"""A synthetic clip and synthetic weights, the same for upstream's classes and ours without a file."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn


def voice_like(seconds: float, rate_hz: int) -> Tensor:
    """Return float32 samples of a harmonic series with changing pitch, pauses, quiet ends and some noise."""
    t = np.arange(int(seconds * rate_hz)) / rate_hz
    pitch_hz = 120 + 40 * np.sin(2 * np.pi * 0.7 * t) + 15 * np.sin(2 * np.pi * 3.1 * t)
    phase = 2 * np.pi * np.cumsum(pitch_hz) / rate_hz
    voice = sum(np.sin(k * phase) / k for k in range(1, 25))
    envelope = np.clip(np.sin(2 * np.pi * 1.3 * t) + 0.6, 0, None) * (t > 0.3) * (t < seconds - 0.3)
    return torch.from_numpy((0.12 * voice * envelope + 0.0015 * scatter(len(t), 7)).astype(np.float32))


def scatter(count: int, seed: int) -> np.ndarray:
    """Return `count` numbers in [-1, 1) from an integer hash, the same on every machine."""
    x = (np.arange(count, dtype=np.uint64) + np.uint64(seed)) * np.uint64(2654435761) % np.uint64(2**32)
    x ^= x >> np.uint64(15)
    x = x * np.uint64(2246822519) % np.uint64(2**32)
    x ^= x >> np.uint64(13)
    return x.astype(np.float64) / 2**31 - 1


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
    return voice_like


@pytest.fixture(scope="session")
def filled() -> Callable[[nn.Module], nn.Module]:
    return fill
