"""HiFT: equal to upstream on a recorded case, exact in length, and with bounded lookahead if causal."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from parity import tiny
from torch import Tensor

from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.hift.config import CAUSAL_LOOKAHEAD_FRAMES, ISTFT_HOP, UPSAMPLE_RATES
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.hift.source import HarmonicSource, sum_in_phase, sum_of_sines

NOT_WEIGHT_NORMED = ("source_downs.", "m_source.", "f0_predictor.classifier.")


@pytest.fixture(scope="module")
def net() -> Hift:
    return tiny.fill_weight_normed(Hift(tiny.TINY_HIFT), NOT_WEIGHT_NORMED)


@pytest.fixture(scope="module")
def causal() -> Hift:
    return tiny.fill_weight_normed(Hift(replace(tiny.TINY_HIFT, causal=True)), NOT_WEIGHT_NORMED)


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
@pytest.mark.parametrize("build", ["net", "causal"])
def test_every_frame_becomes_480_samples(request: pytest.FixtureRequest, build: str, frames: int) -> None:
    hift: Hift = request.getfixturevalue(build)
    source, _ = hift.m_source(hift.f0_predictor(mel(frames)), phase(), noise(frames))
    assert source.shape == (1, 1, 480 * frames)
    assert hift(mel(frames), source).shape == (1, 480 * frames)


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


def test_harmonics_in_phase_make_one_pulse_per_period_without_aliasing() -> None:
    source = HarmonicSource(harmonics=60)
    torch.nn.init.constant_(source.l_linear.weight, 0.1)
    torch.nn.init.zeros_(source.l_linear.bias)
    pulses, _ = source(torch.full((1, 50), 240.0), torch.zeros(1, 60, 1), torch.zeros(1, 9, 24_000))
    power = torch.fft.rfft(pulses[0, 0]).abs().square()  # one bin per hertz
    power = power / power.max()
    assert power[240:11_000:240].min() > 0.1
    assert power[11_280:].max() < 1e-2  # tanh alone adds some
    assert power.reshape(-1)[120:11_000:240].max() < 1e-6  # nothing between the harmonics
    period = pulses[0, 0, 2400:2500].abs()
    assert period.max() > 3 * period.mean()


def test_samples_are_clamped(net: Hift) -> None:
    source, _ = net.m_source(net.f0_predictor(mel()), phase(), noise())
    loud = net(5000 * mel(), source)
    assert loud.abs().max() == 0.99


def first_change(one: Tensor, other: Tensor) -> int:
    return int(((one - other).abs()[0] > 1e-6).nonzero()[0])


@pytest.mark.parametrize("known", [6, 9])
def test_a_causal_vocoder_looks_three_frames_ahead(causal: Hift, known: int) -> None:
    source, _ = causal.m_source(torch.full((1, 12), 120.0), phase(), noise(12))
    original, other = mel(12), mel(12, seed=31)
    other[..., :known] = original[..., :known]
    first = first_change(causal(original, source), causal(other, source))
    settled = 480 * (known - CAUSAL_LOOKAHEAD_FRAMES)
    # The window of the inverse STFT begins half of its 16 samples earlier.
    assert settled - 8 <= first < settled + 480


@pytest.mark.parametrize("known", [6, 9])
def test_a_causal_vocoder_looks_no_further_ahead_through_f0(causal: Hift, known: int) -> None:
    original, other = mel(12), mel(12, seed=31)
    other[..., :known] = original[..., :known]
    rendered = []
    for x in (original, other):
        source, _ = causal.m_source(causal.f0_predictor(x), phase(), noise(12))
        rendered.append(causal(x, source))
    settled = 480 * (known - CAUSAL_LOOKAHEAD_FRAMES)
    # The excitation's STFT looks 8 samples ahead, and so affects the 60 samples of the column before.
    assert settled - 60 - 8 <= first_change(*rendered) < settled + 480


def test_a_two_sided_vocoder_looks_further_ahead(net: Hift) -> None:
    source = tiny.goldens()["hift.source"].repeat(1, 1, 3)[..., : 480 * 12]
    original, other = mel(12), mel(12, seed=31)
    other[..., :9] = original[..., :9]
    assert first_change(net(original, source), net(other, source)) < 480 * (9 - CAUSAL_LOOKAHEAD_FRAMES) - 68


def test_the_recurrence_equals_the_sum_of_sines() -> None:
    angle = torch.linspace(0, 2 * torch.pi, 480).expand(1, 3, 480)
    amplitude = torch.randn(1, 48, 3, generator=torch.Generator().manual_seed(1))
    want = sum_of_sines(angle.double(), amplitude.double(), torch.zeros(1, 48, 1).double())
    assert (sum_in_phase(angle, amplitude) - want).abs().max() < 1e-5 * want.abs().max()
    shifted = sum_of_sines(angle, amplitude, torch.full((1, 48, 1), 0.5))
    assert (shifted - want).abs().max() > 0.1


def test_upsampling_and_the_inverse_transform_give_the_samples_of_a_frame() -> None:
    assert math.prod(UPSAMPLE_RATES) * ISTFT_HOP == CLOCKS.samples_per_frame
