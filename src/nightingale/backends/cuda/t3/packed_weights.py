"""T3's weights per layer, joined where one matrix product does the work of several.

Llama's query, key and value projections are one matrix, and so are the two input projections of its MLP: the
same weights, read in two passes instead of five. The joined matrices replace the storage of the modules, so
nothing is held twice and the modules keep working.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nightingale.models.chatterbox.t3.backbone import LlamaBackbone
from nightingale.models.chatterbox.t3.model import T3

RotationTable = tuple[Tensor, Tensor]
"""Cosines and sines of rotary positions, (positions, head width) each."""
KVCaches = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of each layer, (rows, heads, positions, head width)."""
Linear = tuple[Tensor, Tensor | None]
"""Weight (outputs, inputs) and bias (outputs,)."""


class LayerWeights(NamedTuple):
    norm_1: Any
    """The module: Llama's RMS norm, or GPT-2's layer norm."""
    qkv: Linear
    out: Linear
    norm_2: Any
    up: Linear
    """Llama's gate projection comes first, then its up projection."""
    down: Linear


def pack_weights(t3: T3) -> list[LayerWeights]:
    if isinstance(t3.tfmr, LlamaBackbone):
        return [_pack_llama(layer) for layer in t3.tfmr.layers]
    return [_pack_gpt2(layer) for layer in t3.tfmr.h]


def _pack_llama(layer: Any) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    return LayerWeights(
        norm_1=layer.input_layernorm,
        qkv=_join(attention.q_proj, attention.k_proj, attention.v_proj),
        out=(attention.o_proj.weight, None),
        norm_2=layer.post_attention_layernorm,
        up=_join(mlp.gate_proj, mlp.up_proj),
        down=(mlp.down_proj.weight, None),
    )


def _pack_gpt2(layer: Any) -> LayerWeights:
    return LayerWeights(
        norm_1=layer.ln_1,
        qkv=_transpose(layer.attn.c_attn),
        out=_transpose(layer.attn.c_proj),
        norm_2=layer.ln_2,
        up=_transpose(layer.mlp.c_fc),
        down=_transpose(layer.mlp.c_proj),
    )


def _join(*layers: nn.Linear) -> Linear:
    """Return (all outputs, inputs); the layers' own weights become views of it."""
    joined = torch.cat([layer.weight.detach() for layer in layers])
    outputs = [layer.out_features for layer in layers]
    for layer, own in zip(layers, torch.split(joined, outputs), strict=True):
        layer.weight = nn.Parameter(own, requires_grad=False)
    return joined, None


def _transpose(layer: Any) -> Linear:
    """Return a copy of a weight stored as (inputs, outputs), which becomes a view of it."""
    weight: Tensor = layer.weight.detach().t().contiguous()
    layer.weight = nn.Parameter(weight.t(), requires_grad=False)
    return weight, layer.bias
