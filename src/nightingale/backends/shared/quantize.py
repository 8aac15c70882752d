"""Weights of eight bits: how they are rounded, and the plain twin of a product with them.

Each output's weights are cut into blocks along the inputs; a block has one scale, so that one large weight
costs precision only in its own block. In a product the inputs are rounded the same way, by block and by row,
which makes the sum within a block a sum of whole numbers: exact, whatever the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nightingale.errors import ConfigError
from nightingale.models.chatterbox.t3.backbone_gpt2 import Gpt2Linear
from nightingale.models.chatterbox.t3.model import T3

BLOCKS = (128, 64, 32, 16)
"""Widths of a block, the fastest first; 256 is 4 % faster than 128 and rounds more."""
LEVELS = 127
"""Whole numbers to each side of zero."""
ZERO = 128
"""Stored codes are unsigned; this one stands for zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    codes: Tensor
    """(outputs, blocks, block), uint8."""
    scales: Tensor
    """(outputs, blocks), float32."""

    @property
    def weight(self) -> Tensor:
        """What the codes stand for: (outputs, inputs)."""
        return ((self.codes.float() - ZERO) * self.scales[..., None]).flatten(1)


def block_of(inputs: int) -> int:
    """The widest block that divides a row of so many inputs."""
    for block in BLOCKS:
        if inputs % block == 0:
            return block
    raise ConfigError(
        "a layer cannot be rounded to eight bits",
        got=f"{inputs} inputs",
        allowed=f"a multiple of {BLOCKS[-1]}",
        fix="Use a plan without int8 for this model.",
    )


def round_blocks(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """(…, inputs) -> whole numbers (…, blocks, block) as floats, and scales (…, blocks)."""
    parts = x.float().reshape(*x.shape[:-1], -1, block)
    scales = parts.abs().amax(-1) / LEVELS
    # A block of zeros has no scale, and needs none.
    steps = parts / scales.where(scales > 0, 1.0)[..., None]
    return steps.round().clamp(-LEVELS, LEVELS), scales


def round_weight(weight: Tensor) -> Rounded:
    """weight: (outputs, inputs)."""
    whole, scales = round_blocks(weight, block_of(weight.shape[1]))
    return Rounded(codes=(whole + ZERO).to(torch.uint8), scales=scales)


class RoundedLinear(nn.Module):
    """The twin: the same rounding of weights and inputs, the product in plain torch. Slow, for proof only."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.rounded, self.bias = round_weight(weight), bias

    def forward(self, x: Tensor) -> Tensor:
        codes, scales = self.rounded.codes, self.rounded.scales
        whole, steps = round_blocks(x, codes.shape[-1])
        sums = torch.einsum("...bi,obi->...ob", whole.double(), codes.double() - ZERO)
        y = (sums * steps[..., None, :].double() * scales.double()).sum(-1).to(x.dtype)
        return y if self.bias is None else y + self.bias


def round_t3(t3: T3) -> tuple[str, ...]:
    """Put the twin in the place of each linear layer that the graph rounds; their names."""
    swapped = []
    for path, layer in list(t3.named_modules()):
        if path != "speech_head" and not path.startswith("tfmr."):
            continue
        if isinstance(layer, nn.Linear):
            twin = RoundedLinear(layer.weight, layer.bias)
        elif isinstance(layer, Gpt2Linear):
            twin = RoundedLinear(layer.weight.t(), layer.bias)
        else:
            continue
        # The engine asks the head for its dtype and device.
        twin.weight = layer.weight
        parent, _, name = path.rpartition(".")
        setattr(t3.get_submodule(parent), name, twin)
        swapped.append(path)
    if not swapped:
        raise ConfigError(
            "nothing was rounded", got=type(t3).__name__, allowed="a T3 with linear layers", fix="Pass a T3."
        )
    return tuple(swapped)
