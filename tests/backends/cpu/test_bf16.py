"""Flow and vocoder in bf16, compared with float32; on any CPU, if slowly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from backends.cpu.rendered import mel_of, rms_error, samples_of
from tiny_torch import TINY_PRESET

from nightingale.backends.cpu import bf16
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.weight_layout import pack_for_rendering

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
"""Torch warns, and multiplies slowly, where the CPU has no bf16 instructions."""


@pytest.fixture(scope="module")
def flow() -> Flow:
    torch.manual_seed(0)
    net = Flow(TINY_PRESET.flow).eval()
    pack_for_rendering(net)
    return net


@pytest.fixture(scope="module")
def hift() -> Hift:
    torch.manual_seed(1)
    net = Hift(
        HiftConfig(base_channels=32, resblock_kernels=(3,), source_kernels=(3, 3, 3), f0_channels=16)
    ).eval()
    pack_for_rendering(net)
    return net


def test_a_bf16_flow_is_close_to_float32_and_not_equal(flow: Flow) -> None:
    plain, reduced = mel_of(flow), mel_of(bf16.bf16_flow(flow))
    assert reduced.dtype == torch.float32
    assert 0 < rms_error(reduced, plain) < 0.02


def test_a_guided_flow_is_converted_like_a_meanflow() -> None:
    torch.manual_seed(0)
    guided = Flow(replace(TINY_PRESET.flow, meanflow=False)).eval()
    assert 0 < rms_error(mel_of(bf16.bf16_flow(guided)), mel_of(guided)) < 0.02


def test_a_bf16_vocoder_is_close_to_float32(hift: Hift) -> None:
    plain, reduced = samples_of(hift), samples_of(bf16.bf16_vocoder(hift))
    assert 0 < rms_error(reduced, plain) < 0.05


def test_the_original_networks_are_not_changed(flow: Flow, hift: Hift) -> None:
    before = {name: value.clone() for net in (flow, hift) for name, value in net.state_dict().items()}
    bf16.bf16_flow(flow), bf16.bf16_vocoder(hift)
    after = {name: value for net in (flow, hift) for name, value in net.state_dict().items()}
    assert all(
        value.dtype == torch.float32 and torch.equal(value, before[name]) for name, value in after.items()
    )


def test_pitch_spectrum_and_time_stay_in_float32(flow: Flow, hift: Hift) -> None:
    kept = ("conv_pre", "conv_post", "f0_predictor", "m_source", "source_downs", "ups")
    reduced = bf16.bf16_vocoder(hift)
    for name in kept:
        assert all(weight.dtype == torch.float32 for weight in getattr(reduced, name).parameters()), name
    dtypes = {weight.dtype for weight in reduced.resblocks.parameters()}
    assert dtypes == {torch.float32, torch.bfloat16}  # of Snake, and of the convolutions
    estimator = bf16.bf16_flow(flow).decoder["estimator"]
    assert all(weight.dtype == torch.float32 for weight in estimator.time_mlp.parameters())


@pytest.mark.parametrize(
    ("has_instructions", "speedup", "words"), [(False, 9.0, "no bf16 instructions"), (True, 1.1, "1.1 times")]
)
def test_a_cpu_on_which_bf16_is_slow_gives_a_reason(
    monkeypatch: pytest.MonkeyPatch, has_instructions: bool, speedup: float, words: str
) -> None:
    monkeypatch.setattr(
        torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_instructions, raising=False
    )
    monkeypatch.setattr(bf16, "measure_speedup", lambda: speedup)
    bf16.bf16_unsupported_reason.cache_clear()
    assert words in str(bf16.bf16_unsupported_reason(2))
    bf16.bf16_unsupported_reason.cache_clear()


def test_a_cpu_on_which_bf16_is_fast_gives_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True, raising=False)
    monkeypatch.setattr(bf16, "measure_speedup", lambda: 2.0)
    bf16.bf16_unsupported_reason.cache_clear()
    assert bf16.bf16_unsupported_reason(2) is None
    bf16.bf16_unsupported_reason.cache_clear()


def test_a_second_conversion_changes_nothing(flow: Flow, hift: Hift) -> None:
    flow_bf16, hift_bf16 = bf16.bf16_flow(flow), bf16.bf16_vocoder(hift)
    assert torch.equal(mel_of(bf16.bf16_flow(flow_bf16)), mel_of(flow_bf16))
    assert torch.equal(samples_of(bf16.bf16_vocoder(hift_bf16)), samples_of(hift_bf16))


def test_arranging_a_bf16_network_does_not_change_its_values(flow: Flow, hift: Hift) -> None:
    for net in (bf16.bf16_flow(flow), bf16.bf16_vocoder(hift)):
        before = {name: value.clone() for name, value in net.state_dict().items()}
        pack_for_rendering(net)
        for name, value in net.state_dict().items():
            assert value.dtype == before[name].dtype, name
            assert torch.equal(value, before[name]), name
