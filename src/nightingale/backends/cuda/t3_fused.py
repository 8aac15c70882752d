"""A step of T3 by Triton's kernels: whole layers for a few rows, what lies between products for many.

The twin is `layers.step_layer`, layer by layer, and the network's own norm and head after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.cuda import t3_kernels as kernels
from nightingale.backends.cuda.t3_kernels import LAYER, MOST_ROWS, RMS, Tuning, can_start_early, product
from nightingale.backends.cuda.t3_layers import Gpt2Weights, LlamaWeights, Weights
from nightingale.models.chatterbox.t3.model import T3

Turn = tuple[Tensor, Tensor] | None


def best(device: torch.device, *, llama: bool) -> Tuning:
    """What was fastest of eight on an H200, of one slot's rows (ms a step): 1.02 for the multilingual Llama,
    where the rest took 1.03 to 1.24; 1.14 for Turbo's GPT-2, where the rest took 1.17 to 1.53. Early or not,
    greedy tokens in float32 were the library's, 96 of 96."""
    early = can_start_early(device)
    return Tuning(8, 512, 4, early) if llama else Tuning(4, 256, 4, early)


class FusedSteps:
    def __init__(self, t3: T3, layers: Sequence[Weights], turn: Turn, tuning: Tuning | None = None) -> None:
        """turn: cosines and sines (positions, head width) of every position there is; a GPT-2 has none."""
        head = t3.speech_head
        self._layers, self._turn = layers, turn
        self._tuning = tuning or best(head.weight.device, llama=turn is not None)
        norm: Any = t3.tfmr.get_submodule("norm" if turn is not None else "ln_f")
        self._head: Tensor = head.weight
        self._head_bias: Tensor | None = head.bias
        self._norm: Tensor = norm.weight
        self._folded: list[tuple[Tensor, Tensor]] = []
        """Of each layer, the bias of its two products after a norm, the norm's own bias multiplied in."""
        if turn is None:
            for w in layers:
                assert isinstance(w, Gpt2Weights)
                first = _folded(w.qkv, w.norm_1_bias, w.qkv_bias)
                self._folded.append((first, _folded(w.up, w.norm_2_bias, w.up_bias)))
            self._head_bias = _folded(head.weight, norm.bias, head.bias)

    def __call__(self, x: Tensor, caches: Sequence[tuple[Tensor, Tensor]], lengths: Tensor) -> Tensor:
        """Logits (rows, vocab), in float32, after x (rows, width), which stands at `lengths` (rows,).

        The caches, (rows, heads, span, head width) of each layer, are written to."""
        lengths = lengths.contiguous()  # those of one guided slot are one number seen twice
        few = len(x) <= MOST_ROWS
        for number, (w, (keys, values)) in enumerate(zip(self._layers, caches, strict=True)):
            if isinstance(w, LlamaWeights):
                x = (self._llama if few else self._wide_llama)(x, w, keys, values, lengths)
            else:
                gpt2 = self._gpt2 if few else self._wide_gpt2
                x = gpt2(x, w, keys, values, lengths, self._folded[number])
        if not few:
            norm = (
                kernels.rms_norm(x, self._norm)
                if self._turn is not None
                else _layer_norm(x, self._norm, None)
            )
            scores = F.linear(norm, self._head).float()
            return scores if self._head_bias is None else scores + self._head_bias
        kind = RMS if self._turn is not None else LAYER
        return product(
            x, self._head, self._tuning, norm=self._norm, kind=kind, bias=self._head_bias, dtype=torch.float32
        )

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """A prompt's (rows, time, width): one kernel where the library takes eight."""
        return kernels.rms_norm(x.flatten(0, 1), weight).view_as(x)

    def _llama(self, x: Tensor, w: LlamaWeights, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        tuning = self._tuning
        qkv = product(x, w.qkv, tuning, norm=w.norm_1, kind=RMS)
        heard = kernels.attend(qkv, self._turn, keys, values, lengths, early=tuning.early)
        x = product(heard, w.out, tuning, residual=x)
        inner = product(x, w.gate_up, tuning, norm=w.norm_2, kind=RMS, gated=True)
        return product(inner, w.down, tuning, residual=x)

    def _gpt2(
        self,
        x: Tensor,
        w: Gpt2Weights,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
        folded: tuple[Tensor, Tensor],
    ) -> Tensor:
        tuning = self._tuning
        qkv = product(x, w.qkv, tuning, norm=w.norm_1, kind=LAYER, bias=folded[0])
        heard = kernels.attend(qkv, None, keys, values, lengths, early=tuning.early)
        x = product(heard, w.out, tuning, bias=w.out_bias, residual=x)
        inner = product(x, w.up, tuning, norm=w.norm_2, kind=LAYER, bias=folded[1], gelu=True)
        return product(inner, w.down, tuning, bias=w.down_bias, residual=x)

    def _wide_llama(
        self, x: Tensor, w: LlamaWeights, keys: Tensor, values: Tensor, lengths: Tensor
    ) -> Tensor:
        qkv = F.linear(kernels.rms_norm(x, w.norm_1), w.qkv)
        heard = kernels.attend(qkv, self._turn, keys, values, lengths)
        x = torch.addmm(x, heard, w.out.t())
        inner = kernels.swiglu(F.linear(kernels.rms_norm(x, w.norm_2), w.gate_up))
        return torch.addmm(x, inner, w.down.t())

    def _wide_gpt2(
        self,
        x: Tensor,
        w: Gpt2Weights,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
        folded: tuple[Tensor, Tensor],  # noqa: ARG002, as the other one
    ) -> Tensor:
        qkv = F.linear(_layer_norm(x, w.norm_1, w.norm_1_bias), w.qkv, w.qkv_bias)
        x = x + F.linear(kernels.attend(qkv, None, keys, values, lengths), w.out, w.out_bias)
        inner = F.linear(_layer_norm(x, w.norm_2, w.norm_2_bias), w.up, w.up_bias)
        return x + F.linear(F.gelu(inner, approximate="tanh"), w.down, w.down_bias)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


def _folded(weight: Tensor, norm_bias: Tensor, bias: Tensor | None) -> Tensor:
    """(outputs,) float32: what a product after a norm adds, whatever it is told."""
    added = weight.float() @ norm_bias.float()
    return added if bias is None else added + bias.float()


def trial(device: torch.device) -> None:
    """Compile and run a product here; RuntimeError if it is not right."""
    x, w = (torch.randn(shape, device=device).bfloat16() for shape in ((2, 256), (24, 256)))
    ones = torch.ones(256, device=device, dtype=torch.bfloat16)
    ours = product(x, w, best(device, llama=True), norm=ones, kind=RMS, dtype=torch.float32)
    theirs = F.rms_norm(x.float(), (256,), eps=1e-5) @ w.float().t()
    if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2):
        raise RuntimeError("a product by Triton is not right on this device")
