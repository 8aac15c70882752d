"""GELU and Mish rewritten for CPUs where PyTorch's kernels are slow. Training uses PyTorch's own.

On a Neoverse-N1 with torch 2.13, `gelu` goes through oneDNN, which takes 0.7 ms to start (16 x 768 values:
740 µs, against 170 µs through `erf`); `mish` takes 25 ns a value, against 7 ns through one exponential.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

MISH_LINEAR_FROM = 20.0
"""From here on mish(x) equals x in float32; far above, its exponential would overflow."""


def gelu(x: Tensor) -> Tensor:
    """Return x·(1 + erf(x/√2))/2."""
    if torch.is_grad_enabled() or x.device.type != "cpu":
        return F.gelu(x)
    return torch.addcmul(x, x, torch.erf(x * math.sqrt(0.5))).mul_(0.5)


def mish(x: Tensor) -> Tensor:
    """Return x·tanh(ln(1 + eˣ)), computed as x·n/(n + 2) with n = eˣ·(eˣ + 2)."""
    if torch.is_grad_enabled() or x.device.type != "cpu":
        return F.mish(x)
    e = x.clamp(max=MISH_LINEAR_FROM).exp_()
    n = e * (e + 2)
    return x * n.div_(n + 2)
