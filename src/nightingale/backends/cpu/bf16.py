"""The flow and the vocoder with matrix products in bf16, for CPUs that have instructions for it.

Only products are in bf16: norms, activations, the solver's sum, the embeddings of time, the pitch and the
inverse STFT stay in float32. The weights take half the memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.backends.shared.capability_checks import MIN_SPEEDUP, fastest_s
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.estimator import Estimator
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.weight_layout import release_pages

Net = TypeVar("Net", bound=nn.Module)
PROBE_ROWS, PROBE_WIDTH = (256, 1024), 512


@cache
def bf16_unsupported_reason(threads: int) -> str | None:
    """Return why bf16 products should not be used on this CPU, or None if they should; measures once."""
    # Asked first: without instructions for it, one product would take a second.
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "this CPU has no bf16 instructions"
    if (speedup := measure_speedup()) >= MIN_SPEEDUP:
        return None
    return (
        f"bf16 matrix products are {speedup:.1f} times as fast as float32 with {threads} threads; "
        f"at least {MIN_SPEEDUP} is required"
    )


def measure_speedup() -> float:
    """Return how many times faster a product is in bf16, including the conversion of its input."""
    rng = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, PROBE_WIDTH, generator=rng) for rows in PROBE_ROWS)
    small = weight.bfloat16()
    with torch.inference_mode():
        float32_s = fastest_s(lambda: F.linear(x, weight))
        return float32_s / fastest_s(lambda: F.linear(x.bfloat16(), small).float())


class Bf16Estimator(Estimator):
    """The estimator in bf16, with inputs and outputs in float32."""

    def __init__(self, plain: Estimator) -> None:
        nn.Module.__init__(self)
        for name, part in plain.named_children():
            # Embeddings of time need float32; they are two small products.
            self.add_module(name, part if name.startswith("time_") else _in_bf16(part, part.parameters()))

    def times(self, t: Tensor, r: Tensor | None) -> Tensor:
        return super().times(t, r).bfloat16()

    def forward(self, x: Tensor, **given: Any) -> Tensor:
        """Convert all float inputs but the times, which `times` converts."""
        for name in given.keys() - {"t", "r"}:
            if isinstance(given[name], Tensor) and given[name].is_floating_point():
                given[name] = given[name].bfloat16()
        return super().forward(x.bfloat16(), **given).to(x.dtype)


def bf16_flow(plain: Flow) -> Flow:
    """Return a flow with a bf16 estimator that shares everything else."""
    estimator = plain.decoder["estimator"]
    assert isinstance(estimator, Estimator)
    return with_parts(plain, decoder=nn.ModuleDict({"estimator": Bf16Estimator(estimator)}))


def bf16_vocoder(plain: Hift) -> Hift:
    """Return a vocoder with bf16 convolutions in its residual blocks that shares everything else.

    `nightingale.models.layers.conv.convolve` converts their inputs, and their outputs back to float32.
    """
    parts = {}
    for name in ("resblocks", "source_resblocks"):
        part: nn.Module = getattr(plain, name)
        layers = (layer for layer in part.modules() if isinstance(layer, nn.Conv1d))
        parts[name] = _in_bf16(part, [weight for layer in layers for weight in layer.parameters()])
    return with_parts(plain, **parts)


def _in_bf16(part: Net, weights: Iterable[nn.Parameter]) -> Net:
    """Return a copy with some of its weights in bf16; one by one, so that no float32 copy is made."""
    copies: dict[int, Any] = {}
    for weight in weights:
        copies[id(weight)] = nn.Parameter(weight.detach().bfloat16(), requires_grad=False)
        release_pages(weight)
    return copy.deepcopy(part, copies)


def with_parts(net: Net, **parts: nn.Module) -> Net:
    """Return a network with some of its parts replaced and the others shared."""
    twin = copy.copy(net)
    twin._modules = {**net._modules, **parts}
    return twin
