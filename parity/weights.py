"""Random weights that make every part of a network matter.

A fresh network is too polite a witness: its norms multiply by one, its biases add zero, its statistics are
those of noise, so code that forgets one of them still agrees. Here each gets a value of its own.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

NORM = re.compile(r"(norm|ln_|\.bn|batchnorm|shortcut\.1|block\.2)")


def enliven(net: nn.Module, seed: int) -> None:
    """Give norms, biases, batch statistics, position tables and snakes uneven values, in place."""
    draw = torch.Generator().manual_seed(seed)

    def normal(t: Tensor, mean: float, std: float) -> None:
        t.copy_(mean + std * torch.randn(t.shape, generator=draw))

    with torch.no_grad():
        for name, p in net.named_parameters():
            if NORM.search(name) and p.dim() == 1:
                normal(p, 1.0 if name.endswith("weight") else 0.0, 0.1)
            elif name.endswith(".alpha"):
                p.copy_(0.5 + torch.rand(p.shape, generator=draw))
            elif "pos_emb" in name or "pos_bias" in name or name.endswith("wpe.weight"):
                normal(p, 0.0, 0.2)
            elif name.endswith("bias") and not p.any():
                normal(p, 0.0, 0.02)
        for name, b in net.named_buffers():
            if name.endswith("running_mean"):
                normal(b, 0.0, 0.1)
            elif name.endswith("running_var"):
                b.copy_(0.5 + torch.rand(b.shape, generator=draw))


def make_audible(hift: Any) -> None:
    """A vocoder whose pitch crosses the voiced threshold and whose samples stay inside their limits."""
    with torch.no_grad():
        line = hift.f0_predictor.classifier
        line.weight.mul_(2000.0)
        line.bias.fill_(75.0)
        hift.conv_post.parametrizations.weight.original0.mul_(2.0)


def spread_codes(tokenizer: Any) -> None:
    """A tokenizer that uses all three levels of its eight digits."""
    with torch.no_grad():
        tokenizer.quantizer._codebook.project_down.weight.mul_(6.0)
