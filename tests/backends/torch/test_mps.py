"""PyTorch on MPS, Apple's GPU, under a device that refuses what MPS cannot do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from backends.conformance import Case, Driver, decoding_of, source_of, streams, voice_of
from backends.mps_guard import MPS, MpsGuard, MpsRefusal, MpsTensor

from nightingale.backends.base import Block, Machine, ModelSource, Setup
from nightingale.backends.profiles import PROFILES
from nightingale.backends.torch.runner import generate
from nightingale.backends.torch.sample_stream import MPS_FRAMES, render_samples

TORCH = Case("torch", "float32").object
MACHINE = Machine(device="mps", name="mps", instructions="")
families = pytest.mark.parametrize("family", ["english", "turbo", "wren"])


def setup_of(*, stream: str) -> Setup:
    profile = replace(PROFILES["balanced"], slots=4, stream=stream)  # type: ignore[arg-type]
    return Setup(profile=profile, machine=MACHINE, precision="float32")


@families
def test_mps_decodes_the_tokens_of_the_cpu(family: str) -> None:
    source = source_of(family)
    expected = {seed: list(generate(source.loaded("t3"), decoding_of(source, seed))) for seed in (1, 2)}
    fresh = copied(source)
    with MpsGuard():
        driver = Driver(source, TORCH.open_decoder(fresh, setup_of(stream="block")))
        assert driver.run([1, 2]) == expected


@families
@pytest.mark.parametrize("stream", ["block", "segment"])
def test_mps_renders_the_samples_of_the_cpu(family: str, stream: str) -> None:
    source = source_of(family)
    setup = setup_of(stream=stream)
    expected = rendered(source, replace(setup, machine=replace(MACHINE, device="cpu")))
    fresh = copied(source)
    with MpsGuard():
        samples = rendered(fresh, setup)
    assert samples.shape == expected.shape
    assert np.abs(samples - expected).max() < 2e-3


def copied(source: ModelSource) -> ModelSource:
    """Return the networks as a checkpoint has them: those of the source may be laid out for a CPU."""
    networks = {key: copy.deepcopy(source.loaded(key)) for key in ("t3", "s3gen")}
    for network in (networks["t3"], *networks["s3gen"]):
        for weight in network.parameters():
            weight.data = weight.data.contiguous()
    return ModelSource(source.info, {}, loaded=networks)


def rendered(source: ModelSource, setup: Setup) -> np.ndarray:
    (tokens,) = streams([40])
    renderer = TORCH.open_renderer(source, setup)
    stream = renderer.open(voice_of(16), seed=1)
    cuts = [(0, 16), (16, 40)] if setup.profile.in_blocks else [(0, 40)]
    parts = [
        renderer.render(
            [Block(stream=stream, tokens=tokens[a:b], first=a == 0, final=b == 40, alone=True)]
        ).result()[0]
        for a, b in cuts
    ]
    renderer.close()
    return np.concatenate(parts)


@pytest.mark.parametrize("family", ["english", "wren"])
def test_a_long_mel_is_vocoded_in_blocks(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hift = copied(source_of(family)).loaded("s3gen")[1]
    mel = torch.randn(80, 90, generator=torch.Generator().manual_seed(0))
    expected = render_samples(hift, mel, seed=2)
    monkeypatch.setattr("nightingale.backends.torch.sample_stream.MPS_FRAMES", 40)
    with MpsGuard():
        samples = render_samples(hift.to(MPS), mel, seed=2)
    np.testing.assert_allclose(samples, expected, atol=1e-3)
    assert 120 * (MPS_FRAMES + 64) < 65_536


REFUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "float64": lambda x: x.double(),
    "permuted": lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 2, 3, 4).transpose(1, 2)] * 3),
    "convolution": lambda x: F.conv1d(F.pad(x.reshape(1, 1, -1), (0, 70_000)), x[:1].reshape(1, 1, 1)),
    "two devices": lambda x: x + torch.ones(24),
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_guard_refuses_what_mps_cannot_do(what: str) -> None:
    with MpsGuard():
        x = torch.randn(24).to(MPS)
        assert isinstance(x * 2, MpsTensor)
        with pytest.raises(MpsRefusal, match=what):
            REFUSED[what](x)
