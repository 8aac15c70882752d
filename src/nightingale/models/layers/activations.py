"""Two activations whose kernels are slow on some CPUs, in other words; torch's own wherever it learns.

On a Neoverse-N1 with torch 2.13, `gelu` goes through oneDNN, which takes 0.7 ms to begin (16 by 768 numbers:
740 µs, and 170 µs by `erf`); `mish` takes 25 ns a number, and 7 ns by one exponential.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

FLAT_FROM = 20.0
"""From here on mish(x) is x in float32, and far from here its exponential would overflow."""


def gelu(x: Tensor) -> Tensor:
    """x·(1 + erf(x/√2))/2."""
    if torch.is_grad_enabled() or x.device.type != "cpu":
        return F.gelu(x)
    return torch.addcmul(x, x, torch.erf(x * math.sqrt(0.5))).mul_(0.5)


def mish(x: Tensor) -> Tensor:
    """x·tanh(ln(1 + eˣ)), which is x·n/(n + 2) for n = eˣ·(eˣ + 2)."""
    if torch.is_grad_enabled() or x.device.type != "cpu":
        return F.mish(x)
    e = x.clamp(max=FLAT_FROM).exp_()
    n = e * (e + 2)
    return x * n.div_(n + 2)
