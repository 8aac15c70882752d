"""Euler integration of the flow, and the time steps of its two variants."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x, t, r) -> dx/dt, or its average from t to r; t and r are scalars of shape ()."""


def cosine_times(steps: int) -> list[float]:
    """Return times with fine steps early, where the guided flow changes direction most."""
    return [1 - math.cos(0.5 * math.pi * i / steps) for i in range(steps + 1)]


def linear_times(steps: int) -> list[float]:
    return [i / steps for i in range(steps + 1)]


def integrate(velocity: Velocity, noise: Tensor, times: list[float]) -> Tensor:
    """Integrate with Euler's method along `times`, in the noise's dtype."""
    grid = torch.tensor(times, dtype=noise.dtype, device=noise.device)
    x = noise
    for t, r in pairwise(grid):
        x = x + (r - t) * velocity(x, t, r)
    return x
