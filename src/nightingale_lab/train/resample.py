"""Batched resampling from 24 kHz to 16 kHz in torch, with the windowed sinc of audio.resample."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nightingale.audio.resample import sinc_filters
from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS

DOWN, UP = 3, 2


class To16k(torch.nn.Module):
    """Resamples (batch, samples at 24 kHz) to (batch, samples · 2 / 3)."""

    filters: Tensor

    def __init__(self) -> None:
        super().__init__()
        assert CLOCKS.sample_rate_hz * UP == ANALYSIS_RATE_HZ * DOWN
        filters, self.reach = sinc_filters(DOWN, UP)
        self.register_buffer("filters", torch.from_numpy(filters)[:, None], persistent=False)

    def forward(self, wav: Tensor) -> Tensor:
        padded = F.pad(wav[:, None], (self.reach, self.reach + DOWN))
        out = F.conv1d(padded, self.filters, stride=DOWN)  # (batch, UP, windows)
        return out.transpose(1, 2).flatten(1)[:, : wav.shape[1] * UP // DOWN]
