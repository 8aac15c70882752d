"""Whole segments of official models on ONNX Runtime equal PyTorch's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("onnxruntime")
from backends.conformance import CPU, source_of, voice_of

from nightingale.backends.base import ModelSource, Setup
from nightingale.backends.onnx import capabilities
from nightingale.backends.onnx.numpy_weights import network_weights
from nightingale.backends.onnx.rendering.segment_flow import SegmentFlow
from nightingale.backends.onnx.rendering.vocoder_stream import VocoderNetwork, VocoderStream
from nightingale.backends.profiles import PROFILES
from nightingale.backends.torch.mel_stream import render_mel
from nightingale.backends.torch.sample_stream import render_samples

IDS = np.random.default_rng(3).integers(6561, size=30).tolist()
families = pytest.mark.parametrize("family", ["multilingual", "turbo"])
"""Ten guided steps, and two without guidance."""


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((got - expected) ** 2)) / expected.std())


def flow_of(source: ModelSource, *, int8: bool = False) -> SegmentFlow:
    return SegmentFlow(
        source.info.preset.flow, network_weights(source.loaded("s3gen")[0]), threads=1, int8=int8
    )


@families
@pytest.mark.parametrize(("int8", "bound"), [(False, 1e-5), (True, 0.05)])
def test_the_mel_equals_the_reference(family: str, int8: bool, bound: float) -> None:
    source, voice = source_of(family), voice_of(16)
    expected = render_mel(source.loaded("s3gen")[0], IDS, voice, seed=4).T.numpy()
    mel = flow_of(source, int8=int8).render(IDS, voice, seed=4)
    assert mel.shape == (2 * len(IDS), 80)
    assert relative_error(mel, expected) < bound


def test_the_steps_of_the_solver_can_be_chosen() -> None:
    source, voice = source_of("multilingual"), voice_of(16)
    flow = source.loaded("s3gen")[0]
    few = SegmentFlow(source.info.preset.flow, network_weights(flow), threads=1, steps=3)
    expected = render_mel(flow.with_steps(3), IDS, voice, seed=4).T.numpy()
    assert relative_error(few.render(IDS, voice, seed=4), expected) < 1e-5


def test_the_samples_equal_the_reference() -> None:
    source = source_of("turbo")
    hift, config = source.loaded("s3gen")[1], source.info.preset.hift
    mel = np.random.default_rng(5).normal(size=(60, 80)).astype(np.float32)
    expected = render_samples(hift, torch.from_numpy(mel.T.copy()), seed=6)
    network = VocoderNetwork(config, network_weights(hift), threads=1)
    (samples,) = network.render([VocoderStream(network, seed=6)], [mel], final=True)
    assert len(samples) == 480 * len(mel)
    assert relative_error(samples, expected) < 1e-4


@pytest.mark.parametrize("name", ["english", "multilingual", "turbo", "nano"])
def test_official_models_are_rendered_whole_and_not_in_blocks(name: str) -> None:
    info = source_of(name).info
    whole, in_blocks = (replace(PROFILES["balanced"], stream=mode) for mode in ("segment", "block"))
    setup = Setup(profile=whole, machine=CPU, precision="float32")
    assert capabilities.renderer_unsupported_reason(info, setup) is None
    blocks = replace(setup, profile=in_blocks)
    assert "not in blocks" in str(capabilities.renderer_unsupported_reason(info, blocks))
