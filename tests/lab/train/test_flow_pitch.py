"""The mean pitch of rendered mels, with which the flow is trained to keep the pitch of a clone."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from nightingale_lab.train.flow_step import LEAST_VOICED_FRAMES, FlowTraining


class FirstBand(nn.Module):
    """The pitch is the first band of a mel, in Hz."""

    def forward(self, mel: Tensor) -> Tensor:
        return mel[:, 0]


def test_the_mean_is_over_voiced_frames_that_count() -> None:
    frames = 2 * LEAST_VOICED_FRAMES
    hz = torch.tensor([100.0, 200.0]).repeat(LEAST_VOICED_FRAMES)
    hz[::4] = 0.0  # unvoiced
    normalized = ((hz - 50.0) / 10.0).expand(3, 80, frames).clone().requires_grad_()
    counted = torch.ones(3, frames, dtype=torch.bool)
    counted[1, 1::2] = False  # the frames of 200 Hz
    counted[2, 8:] = False
    training = SimpleNamespace(pitch=FirstBand(), config=SimpleNamespace(mel_mean=50.0, mel_std=10.0))
    mean, enough = FlowTraining._log_pitch(training, normalized, counted)  # type: ignore[arg-type]
    share = float((hz == 200).sum() / (hz > 0).sum())
    assert mean[0].item() == pytest.approx(math.log(100) + share * math.log(2), abs=1e-4)
    assert mean[1].item() == pytest.approx(math.log(100), abs=1e-4)
    assert enough.tolist() == [True, False, False]
    (gradient,) = torch.autograd.grad(mean[0], normalized)
    assert gradient[0, 0, 0] == 0
    assert gradient[0, 0, 1] > 0
