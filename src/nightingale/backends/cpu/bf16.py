"""The flow and the vocoder with products in bfloat16, for CPUs that multiply in it (AMX, AVX512-BF16).

Only products are halved: norms, activations, the solver's sum, the time embeddings, the pitch and everything
that makes samples of a spectrum stay in float32. Weights of eight bits of mantissa are half the memory too.
The twins are the plain networks (tests/accel/test_halves.py).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.backends.onnx.capabilities import quickest_s
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.estimator import Estimator
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.mapped_weights import release_pages

Net = TypeVar("Net", bound=nn.Module)
HALF = torch.bfloat16
WORTH = 1.3
"""So many times faster than float32 must a product be, or rounding is not worth its error."""
PROBE_ROWS, PROBE_WIDTH = 256, 512


@cache
def refusal(threads: int) -> str | None:
    """Why products in bfloat16 are not for this CPU; None if they are. Measured, in some milliseconds."""
    # Asked first: without instructions for it, one product would take a second.
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "this CPU has no instructions for bfloat16"
    gain = measure_gain()
    if gain >= WORTH:
        return None
    speed = f"{gain:.1f} times as fast as in float32 with {threads} threads"
    return f"products in bfloat16 are {speed}; {WORTH} would pay"


def measure_gain() -> float:
    """How many times faster a product is, the rounding of its input included."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(PROBE_ROWS, PROBE_WIDTH, generator=rng)
    weight = torch.randn(2 * PROBE_WIDTH, PROBE_WIDTH, generator=rng)
    half = weight.to(HALF)

    with torch.inference_mode():
        plain, rounded = (lambda: F.linear(x, weight)), (lambda: F.linear(x.to(HALF), half).float())
        return quickest_s(plain) / quickest_s(rounded)


class HalfEstimator(Estimator):
    """The estimator in bfloat16 behind a face of float32."""

    def __init__(self, plain: Estimator) -> None:
        nn.Module.__init__(self)
        for name, part in plain.named_children():
            # Angles of time are far apart in float32 and not in bfloat16; they are two small products.
            self.add_module(name, part if name.startswith("time_") else _copied(part, part.parameters()))

    def times(self, t: Tensor, r: Tensor | None) -> Tensor:
        return super().times(t, r).to(HALF)

    def forward(self, x: Tensor, **given: Any) -> Tensor:
        """As the plain one: whatever is a number but the times, which `times` rounds, is rounded first."""
        rounded: dict[str, Any] = {
            name: value.to(HALF)
            if isinstance(value, Tensor) and value.is_floating_point() and name not in ("t", "r")
            else value
            for name, value in given.items()
        }
        return super().forward(x.to(HALF), **rounded).to(x.dtype)


def halved_flow(plain: Flow) -> Flow:
    """The same flow with another estimator; everything else is shared. A halved one is given back."""
    estimator = plain.decoder["estimator"]
    assert isinstance(estimator, Estimator)
    if isinstance(estimator, HalfEstimator):
        return plain
    return with_parts(plain, decoder=nn.ModuleDict({"estimator": HalfEstimator(estimator)}))


def halved_vocoder(plain: Hift) -> Hift:
    """The same vocoder; the convolutions of its trunk round their inputs, and give float32 back. A halved one
    is given back."""
    if any(weight.dtype == HALF for weight in plain.resblocks.parameters()):
        return plain
    parts = {}
    for name in ("resblocks", "source_resblocks"):
        part: nn.Module = getattr(plain, name)
        layers = (layer for layer in part.modules() if isinstance(layer, nn.Conv1d))
        # They are run by `nightingale.models.layers.conv.convolve`.
        parts[name] = _copied(part, [weight for layer in layers for weight in layer.parameters()])
    return with_parts(plain, **parts)


def _copied(part: Net, halved: Iterable[nn.Parameter]) -> Net:
    """A copy with some of its weights in bfloat16. One by one, so that no second copy in float32 is made."""
    twins: dict[int, Any] = {}
    for weight in halved:
        twins[id(weight)] = nn.Parameter(weight.detach().to(HALF), requires_grad=False)
        release_pages(weight)
    return copy.deepcopy(part, twins)


def with_parts(net: Net, **parts: nn.Module) -> Net:
    """A network with some of its parts replaced, the others shared."""
    twin = copy.copy(net)
    twin._modules = {**net._modules, **parts}
    return twin
