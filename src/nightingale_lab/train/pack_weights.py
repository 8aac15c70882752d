"""Packing of weights into the compact format that the package ships (nightingale.models.compact)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from nightingale.errors import CheckpointError
from nightingale.models.compact import SCALE

LEVELS = 127
MIN_PACKED_VALUES = 4096
"""A smaller matrix stays in float16: there is little to save."""


def pack(tensors: Mapping[str, Tensor], keep_float16: Sequence[str] = ()) -> dict[str, Tensor]:
    """Return the tensors as they are shipped.

    Vectors (norms, biases), small matrices and names that match a pattern of `keep_float16` (`mel2wav.*`)
    become float16, other floating-point tensors int8 with scales.
    """
    packed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if not value.is_floating_point():
            packed[name] = value.contiguous()
        elif (
            value.dim() < 2
            or value.numel() < MIN_PACKED_VALUES
            or any(fnmatchcase(name, pattern) for pattern in keep_float16)
        ):
            packed[name] = _finite(name, value.to(torch.float16)).contiguous()
        else:
            packed[name], packed[name + SCALE] = quantize_rows(_finite(name, value.float()))
    return packed


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize (rows, …) float32 to int8; return it and the float16 scale of each row.

    The scale is rounded up before the row is divided by it, so nothing is clipped, and the error of each
    weight is at most half a scale.
    """
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
        )
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale)).float()[:, None]
    return (rows / divisor).round().to(torch.int8).view_as(weight), scale


def _finite(name: str, value: Tensor) -> Tensor:
    if not torch.isfinite(value).all():
        raise CheckpointError(
            "a weight cannot be packed",
            got=f"{name} with NaN, infinite or, in float16, too large numbers",
            allowed="finite numbers",
        )
    return value
