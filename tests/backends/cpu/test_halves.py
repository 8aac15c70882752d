"""Flow and vocoder with products in bfloat16 beside the plain ones, on any CPU: slow here, but the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nightingale.backends.cpu import bf16 as halves
from nightingale.backends.torch.mel_stream import MelStream
from nightingale.engine.standin import NOISE
from nightingale.backends.torch.sample_stream import SampleStream
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.weight_layout import pack_for_rendering
from nightingale.voices.voice import Voice

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
"""Torch says so, and multiplies slowly, where the CPU has no instructions for it."""
IDS = [5, 800, 17, 6000, 42, 42, 9, 1]


@pytest.fixture(scope="module")
def flow() -> Flow:
    torch.manual_seed(0)
    net = Flow(NOISE.flow).eval()
    pack_for_rendering(net)
    return net


@pytest.fixture(scope="module")
def hift() -> Hift:
    torch.manual_seed(1)
    net = Hift(NOISE.hift).eval()
    pack_for_rendering(net)
    return net


@pytest.fixture(scope="module")
def voice() -> Voice:
    rng = torch.Generator().manual_seed(2)
    return Voice.checked(
        name="random",
        family="wren",
        speaker=torch.rand(16, generator=rng),
        prompt_ids=torch.zeros(0, dtype=torch.int64),
        flow_prompt_ids=torch.arange(6),
        flow_prompt_mel=torch.randn(12, 80, generator=rng),
        flow_speaker=torch.randn(NOISE.flow.speaker_width, generator=rng),
    )


def mel_of(flow: Flow, voice: Voice) -> torch.Tensor:
    stream = MelStream(flow, voice, seed=1, streaming=True)
    return torch.cat([stream.push(IDS[:5], final=False), stream.push(IDS[5:], final=True)], dim=1)


def off(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())


def test_a_halved_flow_says_nearly_the_same_and_not_the_very_same(flow: Flow, voice: Voice) -> None:
    plain, half = mel_of(flow, voice), mel_of(halves.halved_flow(flow), voice)
    assert half.dtype == torch.float32
    assert 0 < off(half, plain) < 0.02


def test_a_guided_flow_is_halved_as_a_meanflow_is(voice: Voice) -> None:
    torch.manual_seed(0)
    guided = Flow(replace(NOISE.flow, meanflow=False)).eval()
    assert 0 < off(mel_of(halves.halved_flow(guided), voice), mel_of(guided, voice)) < 0.02


def test_a_halved_vocoder_sounds_nearly_the_same(hift: Hift) -> None:
    mel = torch.randn(80, 12, generator=torch.Generator().manual_seed(3))

    def samples(net: Hift) -> torch.Tensor:
        return torch.from_numpy(SampleStream(net, seed=1, streaming=True).push(mel, final=True))

    plain, half = samples(hift), samples(halves.halved_vocoder(hift))
    assert 0 < off(half, plain) < 0.05


def test_the_plain_networks_stay_as_they_were(flow: Flow, hift: Hift) -> None:
    before = {name: value.clone() for net in (flow, hift) for name, value in net.state_dict().items()}
    halves.halved_flow(flow), halves.halved_vocoder(hift)
    after = {name: value for net in (flow, hift) for name, value in net.state_dict().items()}
    assert all(
        value.dtype == torch.float32 and torch.equal(value, before[name]) for name, value in after.items()
    )


def test_pitch_spectrum_and_time_stay_in_float32(flow: Flow, hift: Hift) -> None:
    kept = ("conv_pre", "conv_post", "f0_predictor", "m_source", "source_downs", "ups")
    half = halves.halved_vocoder(hift)
    for name in kept:
        assert all(weight.dtype == torch.float32 for weight in getattr(half, name).parameters()), name
    rounded = {weight.dtype for weight in half.resblocks.parameters()}
    assert rounded == {torch.float32, torch.bfloat16}  # Snake's numbers, and the convolutions'
    estimator = halves.halved_flow(flow).decoder["estimator"]
    assert all(weight.dtype == torch.float32 for weight in estimator.time_mlp.parameters())


@pytest.mark.parametrize(
    ("able", "gain", "words"), [(False, 9.0, "no instructions"), (True, 1.1, "1.1 times")]
)
def test_a_cpu_where_it_does_not_pay_is_told_so(
    monkeypatch: pytest.MonkeyPatch, able: bool, gain: float, words: str
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: able, raising=False)
    monkeypatch.setattr(halves, "measure_gain", lambda: gain)
    halves.refusal.cache_clear()
    assert words in str(halves.refusal(2))
    halves.refusal.cache_clear()


def test_a_cpu_where_it_pays_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True, raising=False)
    monkeypatch.setattr(halves, "measure_gain", lambda: 2.0)
    halves.refusal.cache_clear()
    assert halves.refusal(2) is None
    halves.refusal.cache_clear()


def test_what_is_halved_already_stays(flow: Flow, hift: Hift) -> None:
    half_flow, half_hift = halves.halved_flow(flow), halves.halved_vocoder(hift)
    assert halves.halved_flow(half_flow) is half_flow
    assert halves.halved_vocoder(half_hift) is half_hift


def test_halved_networks_are_laid_out_without_being_rounded_again(flow: Flow, hift: Hift) -> None:
    for net in (halves.halved_flow(flow), halves.halved_vocoder(hift)):
        before = {name: value.clone() for name, value in net.state_dict().items()}
        pack_for_rendering(net)
        for name, value in net.state_dict().items():
            assert value.dtype == before[name].dtype, name
            assert torch.equal(value, before[name]), name
