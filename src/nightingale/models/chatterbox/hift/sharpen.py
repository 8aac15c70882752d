"""Gives a mel its contrast back.

A flow trained to go from nothing to the mel in two steps says the mean of what would fit. Between
neighbouring bands, where harmonics are, that mean is flatter than speech: wren's differences have 1/1.3 of
the spread of its teacher's recordings, and a judge hears that as noise (dev/LOG.md). So a part of what a band
has more than its neighbourhood is added once more. That is linear in the mel and costs nothing: the vocoder's
first layer is loaded with it. The pitch is still read from the mel as it is, which that part was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

NEIGHBOURHOOD_BANDS = 5
FIRST_LAYER = "conv_pre.weight"


def sharpening(bands: int, amount: float) -> Tensor:
    """(bands, bands), a mel is multiplied with from the left: x + amount · (x - its neighbours' mean)."""
    reach = NEIGHBOURHOOD_BANDS // 2
    unit = torch.eye(bands)
    mean = F.avg_pool1d(F.pad(unit[None], (reach, reach), mode="replicate"), NEIGHBOURHOOD_BANDS, 1)[0].T
    return unit + amount * (unit - mean)


def sharpened(tensors: Mapping[str, Tensor], amount: float) -> dict[str, Tensor]:
    """HiFT's tensors for a mel as the flow gives it."""
    given = dict(tensors)
    if amount and FIRST_LAYER in given:
        weight = given[FIRST_LAYER]  # (channels, bands, taps)
        operator = sharpening(weight.shape[1], amount).to(weight.dtype)
        given[FIRST_LAYER] = torch.einsum("cbt,bm->cmt", weight, operator)
    return given
