"""The compact format of weights in the package: int8 for large matrices, float16 for the rest.

It makes files small, not arithmetic fast: the networks compute with the float32 that `unpack` returns. A large
matrix w is stored as integers q from -127 to 127 and one scale for each index of axis 0, named like the matrix
+ ".scale":  w ≈ q · s,  s = max|row| / 127, rounded up to float16. `nightingale_lab.train.pack_weights` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nightingale.errors import CheckpointError

SCALE = ".scale"


def unpack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return packed weights in float32; integers that are not weights stay as they are."""
    scales = {name + SCALE for name, value in tensors.items() if value.dtype == torch.int8}
    if missing := sorted(scales - tensors.keys()):
        raise CheckpointError(
            "packed weights without their scales",
            got=", ".join(missing[:6]),
            allowed=f"a tensor named …{SCALE} beside each int8 one",
            fix="The file is damaged: install the package again.",
        )
    return {
        name: _to_float32(value, tensors.get(name + SCALE))
        for name, value in tensors.items()
        if name not in scales
    }


def _to_float32(value: Tensor, scale: Tensor | None) -> Tensor:
    if value.dtype != torch.int8 or scale is None:
        return value.float() if value.is_floating_point() else value
    return value.float().mul_(scale.float().view(-1, *[1] * (value.dim() - 1)))
