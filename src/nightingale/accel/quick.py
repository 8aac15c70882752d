"""The plain networks, arranged for a CPU: the same weights and precision, other strides and fewer calls.

Nothing here is a choice of the user's: what comes out differs from the plain way by the rounding of float32
(tests/accel/test_quick.py), so every profile has it. The flow and the vocoder are laid out anew
(nn/layout.py). T3's step is another matter: one row through nine small layers is a few hundred small calls,
and the calls, not the weights, took two thirds of the time. `QuickLlama` makes half as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.chatterbox.build import Speakers
from nightingale.models.chatterbox.t3.backbone_llama import Layer, LlamaBackbone
from nightingale.models.chatterbox.t3.model import T3
from nightingale.nn.layout import for_many_rows, for_shifts
from nightingale.nn.memory import DenseMemory, LayerMemory

EPSILON = 1e-5


def arrange(speakers: Speakers) -> Speakers:
    """Networks on a CPU, changed in place, and given back; on other devices there is nothing to arrange."""
    if speakers.flow.encoder_proj.weight.device.type != "cpu":
        return speakers
    for_many_rows(speakers.flow)
    for_shifts(speakers.flow)
    for_shifts(speakers.hift)
    quicken(speakers.t3)
    return speakers


def quicken(t3: T3) -> None:
    """Give a Llama its quick step. Other backbones stay as they are."""
    if type(t3.tfmr) is LlamaBackbone and t3.speech_head.weight.dtype == torch.float32:
        t3.tfmr = QuickLlama(t3.tfmr)


class StepWeights(NamedTuple):
    """Of one layer; where one product can do the work of several, joined."""

    norm_1: Tensor
    qkv: Tensor
    out: Tensor
    norm_2: Tensor
    gate_up: Tensor
    down: Tensor


class QuickLlama(LlamaBackbone):
    """A Llama that takes one token of one utterance as a vector, and everything else as it always did.

    It has the plain one's layers, laid out for prompts and batches, and a second copy of their matrices in
    the layout that is quickest for one row.
    """

    def __init__(self, plain: LlamaBackbone) -> None:
        nn.Module.__init__(self)
        self.layers, self.norm = plain.layers, plain.norm
        self._frequencies = plain._frequencies
        self.register_buffer("inverse", plain.inverse, persistent=False)
        self._steps = [_step_weights(layer) for layer in plain.layers]
        for_many_rows(self)

    def forward(self, x: Tensor, memory: Sequence[LayerMemory]) -> Tensor:
        dense = [m for m in memory if isinstance(m, DenseMemory)]
        if (
            x.shape[0] != 1
            or x.shape[1] != 1
            or len(dense) != len(memory)
            or dense[0].position == dense[0].keys.shape[2]
        ):
            return super().forward(x, memory)
        return self._step(x.view(-1), dense)[None, None]

    def first(self, count: int) -> Self:
        part = super().first(count)
        part._steps = self._steps[:count]
        return part

    def _step(self, x: Tensor, memory: Sequence[DenseMemory]) -> Tensor:
        """(width,) -> (width,). Fewer and cheaper calls: the reason for every oddity here."""
        heads, width, at = memory[0].keys.shape[1], x.shape[0], memory[0].position
        angle = self.inverse * at
        cos, sin = angle.cos(), angle.sin()
        for w, layer_memory in zip(self._steps, memory, strict=True):
            keys, values = layer_memory.keys[0], layer_memory.values[0]
            qkv = self._product(w.qkv, x, w.norm_1)
            first, second = qkv[: 2 * width].view(2 * heads, 2, -1).unbind(1)
            turned = first * sin
            first.mul_(cos).addcmul_(second, sin, value=-1)
            second.mul_(cos).add_(turned)
            q, k, v = qkv.view(3, heads, -1).unbind()
            keys.select(1, at).copy_(k)
            values.select(1, at).copy_(v)
            layer_memory.position = at + 1
            out = F.scaled_dot_product_attention(
                q[None, :, None], keys.narrow(1, 0, at + 1)[None], values.narrow(1, 0, at + 1)[None]
            )
            x = torch.addmv(x, w.out, out.view(-1))
            gate, up = self._product(w.gate_up, x, w.norm_2).view(2, -1).unbind()
            x = torch.addmv(x, w.down, F.silu(gate).mul_(up))
        return x * self.norm.weight * _scale(x)

    def _product(self, matrix: Tensor, x: Tensor, norm: Tensor) -> Tensor:
        """matrix · RmsNorm(x), whose common factor is left to the product."""
        return torch.addmv(self.inverse[:1], matrix, x * norm, beta=0, alpha=_scale(x))


def _scale(x: Tensor) -> float:
    """RmsNorm's one number, taken out of torch, where numbers are cheaper."""
    return float((torch.dot(x, x).item() / x.shape[0] + EPSILON) ** -0.5)


def _step_weights(layer: nn.Module) -> StepWeights:
    assert isinstance(layer, Layer)
    attention, mlp = layer.self_attn, layer.mlp
    return StepWeights(
        norm_1=layer.input_layernorm.weight,
        qkv=_joined(attention.q_proj, attention.k_proj, attention.v_proj),
        out=attention.o_proj.weight.detach(),
        norm_2=layer.post_attention_layernorm.weight,
        gate_up=_joined(mlp.gate_proj, mlp.up_proj),
        down=mlp.down_proj.weight.detach(),
    )


def _joined(*layers: nn.Linear) -> Tensor:
    """(all outputs, inputs)."""
    return torch.cat([layer.weight.detach() for layer in layers])
