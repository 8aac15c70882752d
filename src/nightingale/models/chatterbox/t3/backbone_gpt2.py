"""The GPT-2 backbone of Turbo and Nano."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.chatterbox.t3.config import Gpt2Config
from nightingale.models.layers.kv_cache import KVCache


class Projection(nn.Module):
    """A linear layer whose weight is stored (inputs, outputs), as GPT-2 checkpoints have it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.t(), self.bias)


class Attention(nn.Module):
    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.c_attn = Projection(config.width, 3 * config.width)
        self.c_proj = Projection(config.width, config.width)

    def forward(self, x: Tensor, memory: KVCache) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1)
        )
        return self.c_proj(memory.attend(q, k, v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = Projection(width, 4 * width)
        self.c_proj = Projection(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Layer(nn.Module):
    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, eps=1e-5)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.width, eps=1e-5)
        self.mlp = Mlp(config.width)

    def forward(self, x: Tensor, memory: KVCache) -> Tensor:
        x = x + self.attn(self.ln_1(x), memory)
        return x + self.mlp(self.ln_2(x))


class Gpt2Backbone(nn.Module):
    """(rows, time, width) and one memory per layer -> (rows, time, width), normed."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.wpe = nn.Embedding(config.positions, config.width)
        self.h = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, eps=1e-5)

    def first(self, count: int) -> Self:
        """Without the layers after the first so many; weights are shared."""
        part = copy.copy(self)
        part._modules = {**self._modules, "h": self.h[:count]}
        return part

    def forward(self, x: Tensor, memory: Sequence[KVCache], heard: list[Tensor] | None = None) -> Tensor:
        """heard: a list to which the stream before each layer is added."""
        x = x + self.wpe(memory[0].positions(x))
        for layer, layer_memory in zip(self.h, memory, strict=True):
            if heard is not None:
                heard.append(x)
            x = layer(x, layer_memory)
        return self.ln_f(x)
