"""T3's decode step arranged for a CPU: the same weights and precision, other strides and fewer calls.

Results differ from the plain step by float32 rounding only (tests/backends/torch/test_cpu_layout.py), so
every profile uses it. One row through nine small layers is a few hundred small calls, and the calls, not the
weights, took two thirds of the time. `one_step` makes half as many, without Python between them.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.chatterbox.t3.backbone import LlamaBackbone, LlamaLayer
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_cache import DenseKVCache, KVCache
from nightingale.models.layers.weight_layout import transpose_linear_weights

log = logging.getLogger(__name__)


def optimize_single_row(t3: T3) -> T3:
    """Return T3 with a faster step for one row of a Llama backbone; other backbones are rejoint as they are.

    The weights are shared; linear layers are laid out anew in place.
    """
    if type(t3.tfmr) is not LlamaBackbone or t3.speech_head.weight.dtype != torch.float32:
        return t3
    fast = copy.copy(t3)
    fast._modules = {**t3._modules, "tfmr": SingleRowLlama(t3.tfmr)}
    return fast


class StepWeights(NamedTuple):
    """The weights of all layers; matrices that multiply the same input are joined."""

    norm_1: list[Tensor]
    qkv: list[Tensor]
    out: list[Tensor]
    norm_2: list[Tensor]
    gate_up: list[Tensor]
    down: list[Tensor]


class SingleRowLlama(LlamaBackbone):
    """A Llama backbone with a separate path for one token of one row.

    It has the plain backbone's layers, laid out for prompts and batches, and a second copy of their matrices
    in the layout that is fastest for one row.
    """

    def __init__(self, plain: LlamaBackbone) -> None:
        nn.Module.__init__(self)
        self.layers, self.norm = plain.layers, plain.norm
        self._frequencies = plain._frequencies
        self.register_buffer("inverse", plain.inverse, persistent=False)
        self._weights = _step_weights(plain.layers)
        transpose_linear_weights(self)

    def forward(
        self, x: Tensor, kv_caches: Sequence[KVCache], layer_inputs: list[Tensor] | None = None
    ) -> Tensor:
        dense = [cache for cache in kv_caches if isinstance(cache, DenseKVCache)]
        if (
            layer_inputs is not None
            or x.shape[0] != 1
            or x.shape[1] != 1
            or len(dense) != len(kv_caches)
            or dense[0].position == dense[0].keys.shape[2]
        ):
            return super().forward(x, kv_caches, layer_inputs)
        return self._step(x.view(-1), dense)[None, None]

    def _step(self, x: Tensor, caches: Sequence[DenseKVCache]) -> Tensor:
        """Map the input (width,) of the first layer to the output (width,) of the last norm."""
        at = caches[0].position
        keys, values = [layer.keys[:1] for layer in caches], [layer.values[:1] for layer in caches]
        # Without this, TorchScript profiles its first calls to find fusions that do not exist here.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            x = compiled_step()(x, *self._weights, self.norm.weight, self.inverse, keys, values, at)
        for layer in caches:
            layer.position = at + 1
        return x


def one_step(
    x: Tensor,
    norm_1: list[Tensor],
    qkv: list[Tensor],
    out: list[Tensor],
    norm_2: list[Tensor],
    gate_up: list[Tensor],
    down: list[Tensor],
    norm: Tensor,
    inverse: Tensor,
    keys: list[Tensor],
    values: list[Tensor],
    at: int,
) -> Tensor:
    """Run one token through all layers as a vector.

    Fewer and cheaper calls are the reason for every oddity here; RMSNorm's common factor is applied by the
    product that follows it.

    keys, values: (1, heads, capacity, width of a head), of which `at` positions are filled.
    """
    width, heads, none = x.shape[0], keys[0].shape[1], inverse[:1]
    cos, sin = (inverse * at).cos(), (inverse * at).sin()
    for n in range(len(qkv)):
        scale = float((torch.dot(x, x).item() / width + 1e-5) ** -0.5)
        joint = torch.addmv(none, qkv[n], x * norm_1[n], beta=0.0, alpha=scale)
        pairs = joint[: 2 * width].view(2 * heads, 2, -1)
        first, second = pairs.select(1, 0), pairs.select(1, 1)
        crossed = first * sin
        first.mul_(cos).addcmul_(second, sin, value=-1)
        second.mul_(cos).add_(crossed)
        query, key, value = joint.view(3, 1, heads, 1, -1).unbind()
        keys[n].narrow(2, at, 1).copy_(key)
        values[n].narrow(2, at, 1).copy_(value)
        attended = F.scaled_dot_product_attention(
            query, keys[n].narrow(2, 0, at + 1), values[n].narrow(2, 0, at + 1)
        )
        x = torch.addmv(x, out[n], attended.view(-1))
        scale = float((torch.dot(x, x).item() / width + 1e-5) ** -0.5)
        gate, up = torch.addmv(none, gate_up[n], x * norm_2[n], beta=0.0, alpha=scale).view(2, -1).unbind()
        x = torch.addmv(x, down[n], F.silu(gate).mul_(up))
    scale = float((torch.dot(x, x).item() / width + 1e-5) ** -0.5)
    return x * norm * scale


@cache
def compiled_step() -> Callable[..., Tensor]:
    """Return `one_step` as TorchScript, which runs without the GIL.

    The flow and the vocoder run beside T3 (backends/torch/pipelined.py), and hundreds of small calls that each
    wait for the GIL made a step take 10 ms instead of 6. A PyTorch without TorchScript runs the function
    itself, slower.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            scripted: Callable[..., Tensor] = torch.jit.script(one_step)
    except (RuntimeError, AttributeError) as error:
        log.info("T3's step is interpreted: %s", error)
        return one_step
    return scripted


def _step_weights(layers: nn.ModuleList) -> StepWeights:
    weights = StepWeights([], [], [], [], [], [])
    for layer in layers:
        assert isinstance(layer, LlamaLayer)
        attention, mlp = layer.self_attn, layer.mlp
        weights.norm_1.append(layer.input_layernorm.weight.detach())
        weights.qkv.append(_joined(attention.q_proj, attention.k_proj, attention.v_proj))
        weights.out.append(attention.o_proj.weight.detach())
        weights.norm_2.append(layer.post_attention_layernorm.weight.detach())
        weights.gate_up.append(_joined(mlp.gate_proj, mlp.up_proj))
        weights.down.append(mlp.down_proj.weight.detach())
    return weights


def _joined(*layers: nn.Linear) -> Tensor:
    return torch.cat([layer.weight.detach() for layer in layers])
