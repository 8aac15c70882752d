"""The shipping format of small weights: int8 where it saves, float16 elsewhere, float32 once unpacked.

Why it exists. Wren travels inside the package, and a package that is cloned, cached and installed many times
should weigh little. Stored as float16 it would weigh almost twice, as float32 four times as much.

The scheme. A large matrix w becomes whole numbers q from -127 to 127 and one scale per row. A row is axis 0:
the output channel of a linear layer or convolution, the input channel of a transposed one, the entry of an
embedding table.

    w ≈ q · s,    s = max|row| / 127, rounded up to a float16

The scale is rounded *before* the row is divided by it, and upwards, so nothing is clipped and the error of
each weight is at most s/2. It stands beside the matrix under its name + ".scale".

What is kept in float16. Vectors (norms, biases), small matrices, and whatever `keep_half` names: the vocoder,
whose error is heard directly and which is small anyway.

What this is not. It makes files small, not arithmetic fast: the networks run on the float32 that `unpack`
gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from nightingale.errors import CheckpointError

SCALE = ".scale"
LEVELS = 127
SMALLEST_PACKED = 4096
"""Below this many values a matrix stays in float16: there is nothing to save."""


def pack(tensors: Mapping[str, Tensor], keep_half: Sequence[str] = ()) -> dict[str, Tensor]:
    """`tensors` as they are shipped. keep_half: patterns (`mel2wav.*`) of names that stay in float16."""
    packed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if not value.is_floating_point():
            packed[name] = value.contiguous()
        elif (
            value.dim() < 2
            or value.numel() < SMALLEST_PACKED
            or any(fnmatchcase(name, pattern) for pattern in keep_half)
        ):
            packed[name] = _finite(name, value.to(torch.float16)).contiguous()
        else:
            packed[name], packed[name + SCALE] = quantize(_finite(name, value.float()))
    return packed


def unpack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `pack` stored, in float32; whole numbers that are not weights stay as they are."""
    scales = {name + SCALE for name, value in tensors.items() if value.dtype == torch.int8}
    if missing := sorted(scales - tensors.keys()):
        raise CheckpointError(
            "packed weights without their scales",
            got=", ".join(missing[:6]),
            allowed=f"a tensor named …{SCALE} beside each int8 one",
            fix="The file is damaged: install the package again.",
        )
    return {
        name: _widen(value, tensors.get(name + SCALE))
        for name, value in tensors.items()
        if name not in scales
    }


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, …) float32 -> int8 of the same shape, and the scale of each row (rows,) in float16."""
    rows = weight.flatten(1)
    exact = rows.abs().amax(1) / LEVELS
    scale = exact.to(torch.float16)
    scale = torch.where(
        scale.float() < exact, torch.nextafter(scale, torch.full_like(scale, torch.inf)), scale
    )
    if not torch.isfinite(scale).all():
        raise CheckpointError(
            "weights too large to pack",
            got=f"a weight of {float(rows.abs().max()):.3g}",
            allowed=f"weights below {LEVELS * torch.finfo(torch.float16).max:.3g}",
            fix="Keep this tensor out of the package, or look for the fault in training.",
        )
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale)).float()[:, None]
    return (rows / divisor).round().to(torch.int8).view_as(weight), scale


def _widen(value: Tensor, scale: Tensor | None) -> Tensor:
    if value.dtype != torch.int8 or scale is None:
        return value.float() if value.is_floating_point() else value
    return value.float().mul_(scale.float().view(-1, *[1] * (value.dim() - 1)))


def _finite(name: str, value: Tensor) -> Tensor:
    if not torch.isfinite(value).all():
        raise CheckpointError(
            "a weight cannot be packed",
            got=f"{name} with NaN, infinite or, in float16, too large numbers",
            allowed="finite numbers",
            fix="Look for the fault in training.",
        )
    return value
