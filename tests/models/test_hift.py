"""HiFT: equal to upstream on a recorded case, and exact in length."""

from __future__ import annotations

import math

import pytest
import torch
from parity import tiny
from torch import Tensor

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import ISTFT_HOP, UPSAMPLE_RATES
from nightingale.models.chatterbox.hift.generator import Hift

NOT_WEIGHT_NORMED = ("source_downs.", "m_source.", "f0_predictor.classifier.")


@pytest.fixture(scope="module")
def net() -> Hift:
    return tiny.fill_weight_normed(Hift(tiny.TINY_HIFT), NOT_WEIGHT_NORMED)


def mel(frames: int = tiny.FRAMES, seed: int = 8) -> Tensor:
    return tiny.gaussian((1, 80, frames), seed)


def phase() -> Tensor:
    phase = 3 * tiny.scatter((1, 9, 1), 10)
    phase[:, 0] = 0
    return phase


def noise(frames: int = tiny.FRAMES) -> Tensor:
    return tiny.gaussian((1, 9, 480 * frames), 9)


def test_pitch_equals_upstreams(net: Hift) -> None:
    torch.testing.assert_close(net.f0_predictor(mel()), tiny.goldens()["hift.f0_hz"], rtol=1e-4, atol=1e-3)


def test_excitation_for_fixed_phase_and_noise_equals_upstreams(net: Hift) -> None:
    source, _ = net.m_source(tiny.goldens()["hift.f0_hz"], phase(), noise())
    torch.testing.assert_close(source, tiny.goldens()["hift.source"], rtol=1e-4, atol=1e-5)


def test_samples_for_a_fixed_excitation_equal_upstreams(net: Hift) -> None:
    samples = net(mel(), tiny.goldens()["hift.source"])
    torch.testing.assert_close(samples, tiny.goldens()["hift.samples"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frames", [1, 2, 7])
def test_every_frame_becomes_480_samples(net: Hift, frames: int) -> None:
    source, _ = net.m_source(net.f0_predictor(mel(frames)), phase(), noise(frames))
    assert source.shape == (1, 1, 480 * frames)
    assert net(mel(frames), source).shape == (1, 480 * frames)


def test_unvoiced_frames_have_only_noise(net: Hift) -> None:
    f0_hz = torch.tensor([[0.0, 10.0, 10.1]])
    quiet, _ = net.m_source(f0_hz, phase(), torch.zeros(1, 9, 1440))
    rest = torch.tanh(net.m_source.l_linear.bias)
    torch.testing.assert_close(quiet[0, 0, :960], rest.expand(960))
    assert not torch.allclose(quiet[0, 0, 960:], rest.expand(480), atol=1e-3)


def test_excitation_in_blocks_equals_the_whole(net: Hift) -> None:
    f0_hz = 80 + 40 * tiny.scatter((1, 6), 30)
    whole, end = net.m_source(f0_hz, phase(), noise(6))
    first, cycles = net.m_source(f0_hz[:, :2], phase(), noise(6)[..., :960])
    second, last = net.m_source(f0_hz[:, 2:], phase(), noise(6)[..., 960:], cycles)
    torch.testing.assert_close(torch.cat([first, second], dim=2), whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(last, end, rtol=1e-3, atol=1e-3)


def test_samples_are_clamped(net: Hift) -> None:
    source, _ = net.m_source(net.f0_predictor(mel()), phase(), noise())
    loud = net(5000 * mel(), source)
    assert loud.abs().max() == 0.99


def test_upsampling_and_the_inverse_transform_give_the_samples_of_a_frame() -> None:
    assert math.prod(UPSAMPLE_RATES) * ISTFT_HOP == CLOCKS.samples_per_frame
