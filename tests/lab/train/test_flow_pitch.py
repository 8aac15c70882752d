"""The mean pitch of rendered mels, with which the flow is trained to keep the pitch of a clone."""

from __future__ import annotations

import math

import pytest
import torch

from nightingale_lab.train.measured_pitch import LEAST_VOICED_FRAMES, mean_log_pitch


def test_the_mean_is_over_the_given_frames() -> None:
    f0_hz = torch.tensor([100.0, 200.0]).repeat(3, LEAST_VOICED_FRAMES).requires_grad_()
    frames = torch.ones_like(f0_hz, dtype=torch.bool)
    frames[1, 1::2] = False  # the frames of 200 Hz
    frames[2, 8:] = False
    mean, enough = mean_log_pitch(f0_hz, frames)
    assert mean[0].item() == pytest.approx(math.log(100) + 0.5 * math.log(2), abs=1e-4)
    assert mean[1].item() == pytest.approx(math.log(100), abs=1e-4)
    assert enough.tolist() == [True, True, False]
    (gradient,) = torch.autograd.grad(mean[1], f0_hz)
    assert gradient[1, 0] > 0
    assert gradient[1, 1] == 0
