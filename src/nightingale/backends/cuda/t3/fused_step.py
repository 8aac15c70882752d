"""A decode step of T3 by Triton kernels.

For a few rows all of a layer is kernels (t3_kernels.py); for more rows the library's matrix products are as
fast, and the kernels do what lies between them. Reference: `PackedT3.step` by library calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.cuda.t3 import t3_kernels as kernels
from nightingale.backends.cuda.t3.packed_weights import Gpt2Weights, LayerWeights, LlamaWeights, RotationTable
from nightingale.backends.cuda.t3.t3_kernels import LAYER_NORM, MAX_ROWS, NO_NORM, RMS_NORM, linear
from nightingale.backends.cuda.t3.transformer_layer import KVCaches, layer_norm
from nightingale.backends.cuda.triton_support import Tuning, supports_pdl
from nightingale.models.chatterbox.t3.model import T3


def best_tuning(device: torch.device, *, llama: bool) -> Tuning:
    """Return the fastest of eight tunings on an H200, for the rows of one slot.

    A step took 1.02 ms with the multilingual Llama, 1.03 to 1.24 with the others; 1.14 ms with Turbo's
    GPT-2, 1.17 to 1.53 with the others. With and without PDL, greedy tokens in float32 were the library's.
    """
    pdl = supports_pdl(device)
    return Tuning(8, 512, 4, pdl) if llama else Tuning(4, 256, 4, pdl)


class FusedStep:
    """The layers, final norm and head of T3 for one token of each row.

    Args:
        t3: The network.
        layers: Its packed weights.
        rotation: For every position there is; None for a GPT-2.
        tuning: None is the best one for the device.
    """

    def __init__(
        self, t3: T3, layers: Sequence[LayerWeights], rotation: RotationTable | None, tuning: Tuning | None
    ) -> None:
        head = t3.speech_head
        self._layers, self._rotation = layers, rotation
        self._tuning = tuning or best_tuning(head.weight.device, llama=rotation is not None)
        norm: Any = t3.tfmr.get_submodule("norm" if rotation is not None else "ln_f")
        self._head: Tensor = head.weight
        self._head_bias: Tensor | None = head.bias
        self._norm: Tensor = norm.weight
        self._folded: list[tuple[Tensor, Tensor]] = []
        """Per layer, the biases of the two products after a norm, with the norm's bias multiplied in."""
        if rotation is None:
            for w in layers:
                assert isinstance(w, Gpt2Weights)
                first = _fold_bias(w.qkv, w.norm_1_bias, w.qkv_bias)
                self._folded.append((first, _fold_bias(w.up, w.norm_2_bias, w.up_bias)))
            self._head_bias = _fold_bias(head.weight, norm.bias, head.bias)

    def __call__(self, x: Tensor, caches: KVCaches, lengths: Tensor) -> Tensor:
        """Return logits (rows, vocab) float32 after x (rows, width) at positions `lengths` (rows,)."""
        lengths = lengths.contiguous()  # those of one guided slot are one number, expanded
        for number, (w, (keys, values)) in enumerate(zip(self._layers, caches, strict=True)):
            attend = partial(
                kernels.attend,
                rotation=self._rotation,
                keys=keys,
                values=values,
                lengths=lengths,
                pdl=self._tuning.pdl and len(x) <= MAX_ROWS,
            )
            if isinstance(w, LlamaWeights):
                x = self._linear(attend(self._linear(x, w.qkv, norm=w.norm_1)), w.out, residual=x)
                x = self._linear(self._linear(x, w.gate_up, norm=w.norm_2, gated=True), w.down, residual=x)
            elif len(x) <= MAX_ROWS:
                qkv_bias, up_bias = self._folded[number]
                qkv = self._linear(x, w.qkv, norm=w.norm_1, bias=qkv_bias)
                x = self._linear(attend(qkv), w.out, bias=w.out_bias, residual=x)
                inner = self._linear(x, w.up, norm=w.norm_2, bias=up_bias, gelu=True)
                x = self._linear(inner, w.down, bias=w.down_bias, residual=x)
            else:
                qkv = F.linear(layer_norm(x, w.norm_1, w.norm_1_bias), w.qkv, w.qkv_bias)
                x = x + F.linear(attend(qkv), w.out, w.out_bias)
                inner = F.linear(layer_norm(x, w.norm_2, w.norm_2_bias), w.up, w.up_bias)
                x = x + F.linear(F.gelu(inner, approximate="tanh"), w.down, w.down_bias)
        if len(x) <= MAX_ROWS:
            return self._linear(x, self._head, norm=self._norm, bias=self._head_bias, dtype=torch.float32)
        x = kernels.rms_norm(x, self._norm) if self._rotation else layer_norm(x, self._norm, None)
        logits = F.linear(x, self._head).float()
        return logits if self._head_bias is None else logits + self._head_bias

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Apply an RMS norm to a prompt (rows, time, width): one kernel instead of eight."""
        return kernels.rms_norm(x.flatten(0, 1), weight).view_as(x)

    def _linear(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        norm: Tensor | None = None,
        residual: Tensor | None = None,
        gated: bool = False,
        **more: Any,
    ) -> Tensor:
        """Return a product, by one kernel if there are few rows, else by the library."""
        if len(x) <= MAX_ROWS:
            kind = NO_NORM if norm is None else RMS_NORM if self._rotation else LAYER_NORM
            more |= {"norm_weight": norm, "norm": kind, "residual": residual, "gated": gated}
            return linear(x, weight, self._tuning, **more)
        assert not more, "only Llama's products come here"
        if norm is not None:
            x = kernels.rms_norm(x, norm)
        if residual is not None:
            return torch.addmm(residual, x, weight.t())
        return kernels.swiglu(F.linear(x, weight)) if gated else F.linear(x, weight)


def _fold_bias(weight: Tensor, norm_bias: Tensor, bias: Tensor | None) -> Tensor:
    """Return weight · norm_bias + bias, (outputs,) float32: what a product after a norm always adds."""
    folded = weight.float() @ norm_bias.float()
    return folded if bias is None else folded + bias.float()


def check_kernels(device: torch.device) -> None:
    """Compile and run one kernel on the device; raise RuntimeError if its result is wrong."""
    x, w = (torch.arange(rows * 256, device=device).sin().bfloat16().view(rows, 256) for rows in (2, 24))
    ones = torch.ones(256, device=device, dtype=torch.bfloat16)
    tuning = best_tuning(device, llama=True)
    result = linear(x, w, tuning, norm_weight=ones, norm=RMS_NORM, dtype=torch.float32)
    expected = F.rms_norm(x.float(), (256,), eps=1e-5) @ w.float().t()
    if not torch.allclose(result, expected, rtol=1e-2, atol=1e-2):
        raise RuntimeError("a matrix product by Triton is wrong on this device")
