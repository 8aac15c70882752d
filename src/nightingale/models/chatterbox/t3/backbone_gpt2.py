"""The GPT-2 backbone of Turbo and Nano."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.chatterbox.t3.config import Gpt2Config
from nightingale.models.layers.kv_cache import KVCache


class Gpt2Linear(nn.Module):
    """A linear layer whose weight is stored (inputs, outputs), as in GPT-2 checkpoints."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.t(), self.bias)


class Gpt2Attention(nn.Module):
    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.c_attn = Gpt2Linear(config.width, 3 * config.width)
        self.c_proj = Gpt2Linear(config.width, config.width)

    def forward(self, x: Tensor, kv_cache: KVCache) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1)
        )
        return self.c_proj(kv_cache.attend(q, k, v).transpose(1, 2).flatten(2))


class Gpt2Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = Gpt2Linear(width, 4 * width)
        self.c_proj = Gpt2Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Gpt2Layer(nn.Module):
    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, eps=1e-5)
        self.attn = Gpt2Attention(config)
        self.ln_2 = nn.LayerNorm(config.width, eps=1e-5)
        self.mlp = Gpt2Mlp(config.width)

    def forward(self, x: Tensor, kv_cache: KVCache) -> Tensor:
        x = x + self.attn(self.ln_1(x), kv_cache)
        return x + self.mlp(self.ln_2(x))


class Gpt2Backbone(nn.Module):
    """(rows, time, width) and one KV cache per layer -> normed hidden states (rows, time, width)."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.wpe = nn.Embedding(config.positions, config.width)
        self.h = nn.ModuleList(Gpt2Layer(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, eps=1e-5)

    def forward(
        self, x: Tensor, kv_caches: Sequence[KVCache], layer_inputs: list[Tensor] | None = None
    ) -> Tensor:
        """Append the input of each layer to `layer_inputs`, if given."""
        x = x + self.wpe(kv_caches[0].positions(x))
        for layer, kv_cache in zip(self.h, kv_caches, strict=True):
            if layer_inputs is not None:
                layer_inputs.append(x)
            x = layer(x, kv_cache)
        return self.ln_f(x)
