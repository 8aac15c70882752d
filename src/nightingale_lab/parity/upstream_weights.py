"""Upstream's networks of one family with random weights in which every tensor matters.

Fresh networks hide mistakes: their norms multiply by one, their biases add zero and their batch statistics
are those of noise, so code that leaves one of them out still agrees. Here each gets uneven values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nightingale_lab.upstream.families import Family
from nightingale_lab.upstream.networks import t3_config

NORM = re.compile(r"(norm|ln_|\.bn|batchnorm|shortcut\.1|block\.2)")
SEEDS = {"english": 101, "multilingual": 202, "turbo": 303, "nano": 404}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamNetworks:
    t3: Any
    s3gen: Any
    voice_encoder: Any


def build(family: Family) -> UpstreamNetworks:
    """Build upstream's networks with weights from its own initializers, then randomize the rest."""
    from chatterbox.models.s3gen import S3Gen
    from chatterbox.models.t3 import T3
    from chatterbox.models.voice_encoder import VoiceEncoder

    torch.manual_seed(SEEDS[family.name])
    built = UpstreamNetworks(
        t3=T3(t3_config(family)), s3gen=S3Gen(meanflow=not family.guided), voice_encoder=VoiceEncoder()
    )
    for seed, network in enumerate((built.t3, built.s3gen, built.voice_encoder)):
        randomize(network, seed)
        network.eval().requires_grad_(False)
    with torch.no_grad():
        # All three levels of the speech tokenizer's eight digits are used.
        built.s3gen.tokenizer.quantizer._codebook.project_down.weight.mul_(6.0)
        # The vocoder's pitch crosses the voiced threshold, and its samples stay within their limits.
        vocoder = built.s3gen.mel2wav
        vocoder.f0_predictor.classifier.weight.mul_(2000.0)
        vocoder.f0_predictor.classifier.bias.fill_(75.0)
        vocoder.conv_post.parametrizations.weight.original0.mul_(2.0)
    return built


@torch.no_grad()
def randomize(network: nn.Module, seed: int) -> None:
    """Give norms, biases, batch statistics, position tables and Snake parameters uneven values, in place."""
    rng = torch.Generator().manual_seed(seed)

    def normal(tensor: Tensor, mean: float, std: float) -> None:
        tensor.copy_(mean + std * torch.randn(tensor.shape, generator=rng))

    for name, parameter in network.named_parameters():
        if NORM.search(name) and parameter.dim() == 1:
            normal(parameter, 1.0 if name.endswith("weight") else 0.0, 0.1)
        elif name.endswith(".alpha"):
            parameter.copy_(0.5 + torch.rand(parameter.shape, generator=rng))
        elif "pos_emb" in name or "pos_bias" in name or name.endswith("wpe.weight"):
            normal(parameter, 0.0, 0.2)
        elif name.endswith("bias") and not parameter.any():
            normal(parameter, 0.0, 0.02)
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            normal(buffer, 0.0, 0.1)
        elif name.endswith("running_var"):
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=rng))
