"""T3's weights per layer, joined where one matrix product does the work of several.

Llama's query, key and value projections are one matrix, and so are the two input projections of its MLP: the
same weights, read in two passes instead of five. The joined matrices replace the storage of the modules, so
nothing is held twice and the modules keep working.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nightingale.models.chatterbox.t3.backbone import Gpt2Backbone, LlamaBackbone
from nightingale.models.chatterbox.t3.model import T3

RotationTable = tuple[Tensor, Tensor]
"""Cosines and sines of rotary positions, (positions, head width) each."""


class LlamaWeights(NamedTuple):
    norm_1: Tensor
    qkv: Tensor
    out: Tensor
    norm_2: Tensor
    gate_up: Tensor
    down: Tensor


class Gpt2Weights(NamedTuple):
    norm_1: Tensor
    norm_1_bias: Tensor
    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    out_bias: Tensor
    norm_2: Tensor
    norm_2_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor


LayerWeights = LlamaWeights | Gpt2Weights


def pack_weights(t3: T3) -> list[LayerWeights]:
    """Return the weights of each layer; all matrices are (outputs, inputs)."""
    if isinstance(t3.tfmr, LlamaBackbone):
        return [_pack_llama(layer) for layer in t3.tfmr.layers]
    assert isinstance(t3.tfmr, Gpt2Backbone)
    return [_pack_gpt2(layer) for layer in t3.tfmr.h]


def _pack_llama(layer: Any) -> LlamaWeights:
    attention, mlp = layer.self_attn, layer.mlp
    return LlamaWeights(
        norm_1=layer.input_layernorm.weight,
        qkv=_join(attention.q_proj, attention.k_proj, attention.v_proj),
        out=attention.o_proj.weight,
        norm_2=layer.post_attention_layernorm.weight,
        gate_up=_join(mlp.gate_proj, mlp.up_proj),
        down=mlp.down_proj.weight,
    )


def _pack_gpt2(layer: Any) -> Gpt2Weights:
    attention, mlp = layer.attn, layer.mlp
    return Gpt2Weights(
        *(layer.ln_1.weight, layer.ln_1.bias),
        *(_transpose(attention.c_attn), attention.c_attn.bias),
        *(_transpose(attention.c_proj), attention.c_proj.bias),
        *(layer.ln_2.weight, layer.ln_2.bias),
        *(_transpose(mlp.c_fc), mlp.c_fc.bias),
        *(_transpose(mlp.c_proj), mlp.c_proj.bias),
    )


def _join(*linears: nn.Linear) -> Tensor:
    """Return (all outputs, inputs); the layers' own weights become views of it."""
    joined = torch.cat([linear.weight.detach() for linear in linears])
    start = 0
    for linear in linears:
        end = start + linear.out_features
        linear.weight = nn.Parameter(joined[start:end], requires_grad=False)
        start = end
    return joined


def _transpose(projection: Any) -> Tensor:
    """Return a copy (outputs, inputs) of a weight stored as (inputs, outputs), now a view of it."""
    weight: Tensor = projection.weight.detach().t().contiguous()
    projection.weight = nn.Parameter(weight.t(), requires_grad=False)
    return weight
