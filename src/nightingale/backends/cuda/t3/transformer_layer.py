"""One transformer layer of T3 by library calls, with packed weights: Llama's and GPT-2's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.cuda.t3.packed_weights import LayerWeights, LlamaWeights
from nightingale.models.layers.rope import rotate

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q, k, v, each (rows, heads, time, head width) -> like q."""
Norm = Callable[[Tensor, Tensor], Tensor]
"""x (rows, time, width) and a weight (width,) -> like x."""
KVCaches = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of each layer, (rows, heads, positions, head width)."""


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


def transformer_layer(
    x: Tensor,
    w: LayerWeights,
    rotation: tuple[Tensor, Tensor] | None,
    heads: int,
    attention: Attention,
    norm: Norm = rms_norm,
) -> Tensor:
    """Apply one layer to x (rows, time, width). rotation: cosines and sines; norm: Llama's."""
    if isinstance(w, LlamaWeights):
        assert rotation is not None
        q, k, v = _split_heads(F.linear(norm(x, w.norm_1), w.qkv), heads)
        x = x + F.linear(_join_heads(attention(rotate(q, *rotation), rotate(k, *rotation), v)), w.out)
        gate, up = F.linear(norm(x, w.norm_2), w.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, w.down)
    q, k, v = _split_heads(F.linear(layer_norm(x, w.norm_1, w.norm_1_bias), w.qkv, w.qkv_bias), heads)
    x = x + F.linear(_join_heads(attention(q, k, v)), w.out, w.out_bias)
    hidden = F.linear(layer_norm(x, w.norm_2, w.norm_2_bias), w.up, w.up_bias)
    return x + F.linear(F.gelu(hidden, approximate="tanh"), w.down, w.down_bias)


def _split_heads(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v (rows, heads, time, head width) of (rows, time, 3 · width)."""
    q, k, v = qkv.view(*qkv.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
    return q, k, v


def _join_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)
