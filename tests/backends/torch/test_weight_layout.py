"""Networks laid out for a CPU give the results of the plain ones, up to the rounding of their precision."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from parity import tiny
from torch import Tensor, nn

from nightingale.models.chatterbox.hift.config import HARMONICS
from nightingale.models.chatterbox.hift.generator import Hift, Snake
from nightingale.models.chatterbox.hift.hift_stream import HiftStream
from nightingale.models.chatterbox.s3gen.estimator import gelu, mish
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers import weight_layout as layout
from nightingale.models.layers.conv import UpsamplingConv1d, convolve, same_conv, transposed_convolve

ARM, X86 = "aarch64", "x86_64"
ROUNDING = 1e-12
"""Tolerance in double precision, in which all of these run that can."""
SINGLE = 2e-5
"""Tolerance in single precision, through a whole network whose values are about one."""


@pytest.fixture(autouse=True)
def _arm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is tried on every machine."""
    monkeypatch.setattr("platform.machine", lambda: ARM)


class Rendering(NamedTuple):
    flow: Flow
    hift: Hift


def packed(networks: Rendering) -> Rendering:
    """Lay out the networks as the PyTorch backend does on a CPU."""
    for network in networks:
        layout.pack_for_rendering(network)
    return networks


def speakers() -> Rendering:
    return Rendering(
        flow=tiny.fill(Flow(replace(tiny.TINY_MEANFLOW, block_causal=True))),
        hift=tiny.fill(Hift(tiny.TINY_HIFT)),
    )


@pytest.mark.parametrize("taps", [1, 3, 7])
@pytest.mark.parametrize("dilation", [1, 5])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_convolution_by_shifts_is_the_convolution(taps: int, dilation: int, batch: int) -> None:
    layer = same_conv(6, 9, taps, dilation=dilation, causal=True).double().requires_grad_(False)
    x = tiny.scatter((batch, 6, 40), 1).double()
    expected = layer(x)
    layout.pack_for_rendering(layer)
    assert layer.weight.shape == (9, 6, taps)
    assert (layer(x) - expected).abs().max() < ROUNDING


def test_a_convolution_with_strides_is_left_alone() -> None:
    layer = nn.Conv1d(4, 5, 6, stride=3).requires_grad_(False)
    layout.pack_for_rendering(layer)
    x = tiny.scatter((1, 4, 30), 1)
    assert layer.weight.is_contiguous()
    assert torch.equal(convolve(layer, x), layer(x))


@pytest.mark.parametrize(("taps", "stride"), [(16, 8), (11, 5), (7, 3), (4, 4), (3, 5)])
@pytest.mark.parametrize("columns", [1, 2, 13])
def test_a_transposed_convolution_by_products_is_that_convolution(
    taps: int, stride: int, columns: int
) -> None:
    layer = UpsamplingConv1d(6, 4, taps, stride).double().requires_grad_(False)
    x = tiny.scatter((1, 6, columns), 1).double()
    expected = F.conv_transpose1d(x, layer.weight, stride=stride)
    layout.pack_for_rendering(layer)
    got = transposed_convolve(x, layer.weight, stride)
    assert got.shape == expected.shape
    assert (got - expected).abs().max() < ROUNDING


def test_on_x86_convolutions_stay_torchs() -> None:
    layer = same_conv(4, 4, 3, causal=True)
    layout.pack_for_rendering(layer, X86)
    assert layer.weight.is_contiguous()
    layout.pack_for_rendering(layer, ARM)
    assert not layer.weight.is_contiguous()


def test_only_strides_change() -> None:
    plain, arranged = speakers(), packed(speakers())
    for net, packed_net in zip(plain, arranged, strict=True):
        before, after = net.state_dict(), packed_net.state_dict()
        assert list(before) == list(after)
        assert all(torch.equal(before[name], after[name]) for name in before)


@torch.inference_mode()
def test_an_arranged_flow_gives_the_same_mel() -> None:
    plain, arranged = speakers().flow, packed(speakers()).flow
    said = {
        "prompt_mel": tiny.scatter((1, 80, 4), 2),
        "speaker": tiny.scatter((1, 192), 3),
        "noise": tiny.gaussian((1, 80, 24), 4),
    }
    a, b = (flow(tiny.ids(12, 1), **said) for flow in (plain, arranged))
    assert 0 < (a - b).abs().max() < SINGLE  # or nothing was arranged


@torch.inference_mode()
def test_an_arranged_vocoder_gives_the_same_samples() -> None:
    plain = speakers().hift.double()
    arranged = deepcopy(plain)
    layout.pack_for_rendering(arranged)
    mel = tiny.scatter((1, 80, 12), 2).double()
    noise = tiny.gaussian((12 * 480, 9), 3).double()

    def streamed(hift: Hift) -> Tensor:
        phase = torch.zeros(1, HARMONICS, 1)
        stream = HiftStream(hift, phase=phase, noise=lambda at, count: noise[at : at + count])
        return torch.cat([stream.push(mel[..., :5], final=False), stream.push(mel[..., 5:], final=True)])

    assert (
        streamed(plain) - streamed(arranged)
    ).abs().max() < 1e-7  # its samples are clipped, so its sums are large


@torch.inference_mode()
def test_a_snake_writes_what_it_gives() -> None:
    snake = Snake(5).double()
    snake.alpha.data = 1 + 0.5 * tiny.scatter((5,), 1).double()
    x = tiny.scatter((1, 5, 20), 2).double()
    padded = torch.zeros(1, 5, 26, dtype=torch.float64)
    snake.write(x, padded[..., 6:])
    assert (padded[..., 6:] - snake(x)).abs().max() < ROUNDING
    assert not padded[..., :6].any()


@pytest.mark.parametrize(("ours", "torchs"), [(gelu, F.gelu), (mish, F.mish)], ids=["gelu", "mish"])
def test_activations_are_torchs(ours: object, torchs: object) -> None:
    assert callable(ours)
    assert callable(torchs)
    x = torch.cat([torch.linspace(-100, 100, 4001), torch.linspace(-4, 4, 4001)])
    with torch.inference_mode():
        assert ours(x) == pytest.approx(torchs(x), rel=1e-6, abs=1e-6)
        assert not torch.equal(ours(x), torchs(x))  # or it was torch's own
    learned = x.clone().requires_grad_()
    assert torch.equal(ours(learned), torchs(learned))
