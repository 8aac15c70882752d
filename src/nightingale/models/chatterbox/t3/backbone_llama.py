"""The Llama backbone of the English and multilingual T3 (and of wren)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.chatterbox.t3.config import LlamaConfig
from nightingale.models.layers.kv_cache import KVCache
from nightingale.models.layers.rope import inverse_frequencies, rotate, rotations


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q_proj = nn.Linear(config.width, config.width, bias=False)
        self.k_proj = nn.Linear(config.width, config.width, bias=False)
        self.v_proj = nn.Linear(config.width, config.width, bias=False)
        self.o_proj = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], memory: KVCache) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = memory.attend(rotate(q, *turn), rotate(k, *turn), v)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.ffn, bias=False)
        self.up_proj = nn.Linear(config.width, config.ffn, bias=False)
        self.down_proj = nn.Linear(config.ffn, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = RmsNorm(config.width)
        self.post_attention_layernorm = RmsNorm(config.width)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], memory: KVCache) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turn, memory)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaBackbone(nn.Module):
    """(rows, time, width) and one memory per layer -> (rows, time, width), normed."""

    inverse: Tensor

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RmsNorm(config.width)
        self._frequencies = partial(
            inverse_frequencies,
            config.width // config.heads,
            theta=config.rope_theta,
            scaling=config.rope_scaling,
        )
        self.register_buffer("inverse", self._frequencies(), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LlamaBackbone:
        """As for every module, but frequencies stay exact: times a position, eight bits of one are another
        angle (its cosine is off by 0.2 after 200 tokens)."""
        super()._apply(fn, recurse)
        if self.inverse.dtype in (torch.float16, torch.bfloat16):
            self.inverse = self._frequencies().to(self.inverse.device)
        return self

    def first(self, count: int) -> Self:
        """Without the layers after the first so many; weights are shared."""
        part = copy.copy(self)
        part._modules = {**self._modules, "layers": self.layers[:count]}
        return part

    def forward(self, x: Tensor, memory: Sequence[KVCache], heard: list[Tensor] | None = None) -> Tensor:
        """heard: a list to which the stream before each layer is added."""
        cos, sin = rotations(self.inverse, memory[0].positions(x), x.dtype)
        # (time, head) is the same for all rows; (rows, time, head) needs an axis for the heads.
        turn = (cos, sin) if cos.dim() == 2 else (cos[:, None], sin[:, None])
        for layer, layer_memory in zip(self.layers, memory, strict=True):
            if heard is not None:
                heard.append(x)
            x = layer(x, turn, layer_memory)
        return self.norm(x)
