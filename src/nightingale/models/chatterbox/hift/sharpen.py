"""Sharpening of the flow's mel, folded into the vocoder's first layer.

A flow of two steps predicts the mean of possible mels, which between neighbouring bands is flatter than speech
(dev/log-archive.md). So a fraction of each band's difference from its neighbourhood is added to it. That is linear in
the mel and costs nothing at run time. f0 is still predicted from the mel as it is, as in training.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

NEIGHBOURHOOD_BANDS = 5
FIRST_LAYER = "conv_pre.weight"


def sharpening_matrix(bands: int, amount: float) -> Tensor:
    """Return the (bands, bands) matrix of x + amount · (x - mean of its neighbours)."""
    reach = NEIGHBOURHOOD_BANDS // 2
    unit = torch.eye(bands)
    mean = F.avg_pool1d(F.pad(unit[None], (reach, reach), mode="replicate"), NEIGHBOURHOOD_BANDS, 1)[0].T
    return unit + amount * (unit - mean)


def sharpen_weights(tensors: Mapping[str, Tensor], amount: float) -> dict[str, Tensor]:
    """Return HiFT's tensors with the sharpening in the first layer."""
    result = dict(tensors)
    if amount and FIRST_LAYER in result:
        weight = result[FIRST_LAYER]  # (channels, bands, taps)
        operator = sharpening_matrix(weight.shape[1], amount).to(weight.dtype)
        result[FIRST_LAYER] = torch.einsum("cbt,bm->cmt", weight, operator)
    return result
