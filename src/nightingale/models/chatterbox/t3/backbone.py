"""The backbones of T3: Llama (English, multilingual and wren) and GPT-2 (Turbo and Nano)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.chatterbox.t3.config import Gpt2Config, LlamaConfig
from nightingale.models.layers.kv_cache import KVCache
from nightingale.models.layers.rope import inverse_frequencies, rotate, rotations


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class LlamaAttention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q_proj = nn.Linear(config.width, config.width, bias=False)
        self.k_proj = nn.Linear(config.width, config.width, bias=False)
        self.v_proj = nn.Linear(config.width, config.width, bias=False)
        self.o_proj = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], kv_cache: KVCache) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = kv_cache.attend(rotate(q, *rope), rotate(k, *rope), v)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class LlamaMlp(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.ffn, bias=False)
        self.up_proj = nn.Linear(config.width, config.ffn, bias=False)
        self.down_proj = nn.Linear(config.ffn, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config)
        self.mlp = LlamaMlp(config)
        self.input_layernorm = RmsNorm(config.width)
        self.post_attention_layernorm = RmsNorm(config.width)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], kv_cache: KVCache) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, kv_cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaBackbone(nn.Module):
    """(rows, time, width) and one KV cache per layer -> normed hidden states (rows, time, width)."""

    inverse: Tensor

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(LlamaLayer(config) for _ in range(config.layers))
        self.norm = RmsNorm(config.width)
        self._frequencies = partial(
            inverse_frequencies,
            config.width // config.heads,
            theta=config.rope_theta,
            scaling=config.rope_scaling,
        )
        self.register_buffer("inverse", self._frequencies(), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LlamaBackbone:
        """Move or cast the module, but keep the rotary frequencies in float32.

        Rounded to bfloat16 and multiplied by a position they give other angles: the cosine is off by 0.2
        after 200 tokens.
        """
        super()._apply(fn, recurse)
        if self.inverse.dtype in (torch.float16, torch.bfloat16):
            self.inverse = self._frequencies().to(self.inverse.device)
        return self

    def forward(self, x: Tensor, kv_caches: Sequence[KVCache]) -> Tensor:
        return self.norm(self.first_layers(x, kv_caches))

    def first_layers(self, x: Tensor, kv_caches: Sequence[KVCache]) -> Tensor:
        """Apply as many layers as there are KV caches; return the residual stream after them."""
        cos, sin = rotations(self.inverse, kv_caches[0].positions(x), x.dtype)
        # (time, head) is the same for all rows; (rows, time, head) needs an axis for the heads.
        rope = (cos, sin) if cos.dim() == 2 else (cos[:, None], sin[:, None])
        return _run(self.layers, x, kv_caches, rope)


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

    def forward(self, x: Tensor, kv_caches: Sequence[KVCache]) -> Tensor:
        return self.ln_f(self.first_layers(x, kv_caches))

    def first_layers(self, x: Tensor, kv_caches: Sequence[KVCache]) -> Tensor:
        """Apply as many layers as there are KV caches; return the residual stream after them."""
        x = x + self.wpe(kv_caches[0].positions(x))
        return _run(self.h, x, kv_caches)


def _run(layers: nn.ModuleList, x: Tensor, kv_caches: Sequence[KVCache], *rope: Any) -> Tensor:
    """Apply as many layers as there are KV caches."""
    for layer, kv_cache in zip(layers[: len(kv_caches)], kv_caches, strict=True):
        x = layer(x, *rope, kv_cache)
    return x
