"""A decode step of T3 by Triton kernels.

For a few rows all of a layer is kernels (t3_kernels.py); for more rows the library's matrix products are as
fast, and the kernels do what lies between them. Reference: `PackedT3.step` by library calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nightingale.backends.cuda.t3 import t3_kernels as kernels
from nightingale.backends.cuda.t3.packed_weights import KVCaches, LayerWeights, Linear, RotationTable
from nightingale.backends.cuda.t3.t3_kernels import LAYER_NORM, MAX_ROWS, RMS_NORM, linear
from nightingale.backends.cuda.triton_support import Tuning, supports_pdl
from nightingale.models.chatterbox.t3.model import T3


def best_tuning(device: torch.device, *, llama: bool) -> Tuning:
    """Return the fastest of eight tunings on an H200, for the rows of one slot.

    A step took 1.02 ms with the multilingual Llama, 1.14 ms with Turbo's GPT-2; up to 1.24 and 1.53 ms with
    the others. With and without PDL, greedy tokens in float32 were the library's.
    """
    pdl = supports_pdl(device)
    return Tuning(8, 512, 4, pdl, prefetch=True) if llama else Tuning(4, 256, 4, pdl)


class FusedStep:
    """The layers, final norm and head of T3 for one token of each row. A GPT-2 has no rotation table."""

    def __init__(
        self, t3: T3, layers: Sequence[LayerWeights], rotation: RotationTable | None, tuning: Tuning | None
    ) -> None:
        self._llama, self._rotation, self._layers = rotation is not None, rotation, layers
        self.tuning = tuning or best_tuning(t3.speech_head.weight.device, llama=self._llama)
        self._folded = [
            w._replace(qkv=_fold_bias(w.norm_1, w.qkv), up=_fold_bias(w.norm_2, w.up)) for w in layers
        ]
        self._norm: Any = t3.tfmr.get_submodule("norm" if self._llama else "ln_f")
        self._head = _fold_bias(self._norm, (t3.speech_head.weight, t3.speech_head.bias))

    def __call__(
        self,
        x: Tensor,
        caches: KVCaches,
        lengths: Tensor,
        *,
        out: Tensor,
    ) -> None:
        """Write logits (rows, vocab) float32 after x (rows, width), which may be overwritten, to `out`.

        x: the token of each row, at position `lengths` (rows,).
        """
        lengths = lengths.contiguous()  # those of one guided slot are one number, expanded
        few = len(x) <= MAX_ROWS
        layer = self._few_rows if few else self._many_rows
        shared: dict[str, Any] = {
            "rotation": self._rotation,
            "lengths": lengths,
            "pdl": self.tuning.pdl and few,
        }
        for w, (keys, values) in zip(self._folded if few else self._layers, caches, strict=True):
            x = layer(x, w, partial(kernels.attend, keys=keys, values=values, **shared))
        if few:
            self._linear(x, self._head, norm=self._norm, out=out)
            return
        if self._llama:
            x = kernels.rms_norm(x, self._norm.weight)
        else:
            x = F.layer_norm(x, (x.shape[-1],), self._norm.weight, None, 1e-5)  # its bias is folded
        weight, bias = self._head
        logits = F.linear(x, weight)
        if bias is None:
            out.copy_(logits)
        else:
            torch.add(logits, bias, out=out)

    def norm(self, module: Any, x: Tensor) -> Tensor:
        """Apply a layer's norm to a prompt (rows, time, width): Llama's by one kernel instead of eight."""
        if not self._llama:
            return module(x)  # type: ignore[no-any-return]
        return kernels.rms_norm(x.flatten(0, 1), module.weight).view_as(x)

    def _few_rows(self, x: Tensor, w: LayerWeights, attend: Callable[[Tensor], Tensor]) -> Tensor:
        attended = attend(self._linear(x, w.qkv, norm=w.norm_1))
        x = self._linear(attended, w.out, residual=x)
        hidden = self._linear(x, w.up, norm=w.norm_2, gated=self._llama, gelu=not self._llama)
        return self._linear(hidden, w.down, residual=x)

    def _many_rows(self, x: Tensor, w: LayerWeights, attend: Callable[[Tensor], Tensor]) -> Tensor:
        if not self._llama:
            x = x + F.linear(attend(F.linear(w.norm_1(x), *w.qkv)), *w.out)
            hidden = F.linear(w.norm_2(x), *w.up)
            return x + F.linear(F.gelu(hidden, approximate="tanh"), *w.down)
        qkv = F.linear(kernels.rms_norm(x, w.norm_1.weight), *w.qkv)
        x.addmm_(attend(qkv), w.out[0].t())  # `addmm` would copy x first
        hidden = kernels.swiglu(F.linear(kernels.rms_norm(x, w.norm_2.weight), *w.up))
        return x.addmm_(hidden, w.down[0].t())

    def _linear(self, x: Tensor, layer: Linear, *, norm: Any = None, **more: Any) -> Tensor:
        """Return a product by one kernel, with the norm before it."""
        weight, bias = layer
        if norm is not None:
            more |= {"norm_weight": norm.weight, "norm": RMS_NORM if self._llama else LAYER_NORM}
        return linear(x, weight, self.tuning, bias=bias, **more)


def _fold_bias(norm: Any, layer: Linear) -> Linear:
    """Return a layer that adds what it makes of the bias of the norm before it, in float32."""
    weight, bias = layer
    if getattr(norm, "bias", None) is None:
        return layer
    folded = weight.float() @ norm.bias.float()
    return weight, folded if bias is None else folded + bias.float()


def check_kernels(device: torch.device) -> None:
    """Compile and run one kernel on the device; raise RuntimeError if its result is wrong."""
    x, w = (torch.arange(rows * 256, device=device).sin().bfloat16().view(rows, 256) for rows in (2, 24))
    ones = torch.ones(256, device=device, dtype=torch.bfloat16)
    tuning = best_tuning(device, llama=True)
    result = torch.empty(2, 24, device=device)
    linear(x, w, tuning, norm_weight=ones, norm=RMS_NORM, out=result)
    expected = F.rms_norm(x.float(), (256,), eps=1e-5) @ w.float().t()
    if not torch.allclose(result, expected, rtol=1e-2, atol=1e-2):
        raise RuntimeError("a matrix product by Triton is wrong on this device")
