"""Layers of the flow and the vocoder with products of bytes, beside the same rounding in torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from threading import Thread

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("llvmlite")
from nightingale.backends.cpu import capabilities as able
from nightingale.backends.cpu import target
from nightingale.backends.cpu.int8_networks import (
    OwnAttend,
    OwnSnake,
    RoundedConv1d,
    RoundedLinear,
    Workshop,
    rounded_flow,
    rounded_vocoder,
)
from nightingale.backends.cpu.target import of_this_machine
from nightingale.backends.shared.quantize import RoundedLinear as Twin
from nightingale.backends.shared.quantize import block_of, round_blocks
from nightingale.backends.torch.mel_stream import MelStream
from nightingale.backends.torch.sample_stream import SampleStream
from nightingale.models.chatterbox.hift.generator import Hift, Snake
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.s3gen.estimator import AttentionProduct
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.conv import same_conv
from nightingale.models.layers.weight_layout import pack_for_rendering
from nightingale.voices.voice import Voice

if isinstance(found := of_this_machine(), str):
    pytest.skip(found, allow_module_level=True)
WREN = PRESETS["wren"]
IDS = [5, 800, 17, 6000, 42, 42, 9, 1]


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def shop() -> Workshop:
    return able.workshop()


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def off(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())


def dequantized(x: Tensor, block: int) -> Tensor:
    """(…, inputs), as rounding leaves them."""
    whole, scales = round_blocks(x, block)
    return (whole.double() * scales[..., None].double()).flatten(-2)


def conv_twin(layer: nn.Conv1d, x: Tensor) -> Tensor:
    block = block_of(layer.in_channels)
    weight = dequantized(layer.weight.transpose(1, 2), block).transpose(1, 2)
    given = dequantized(x.transpose(1, 2), block).transpose(1, 2)
    assert layer.bias is not None
    return F.conv1d(given, weight, layer.bias.double(), dilation=layer.dilation).float()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(192, 64), (128, 192), (768, 192)])
@pytest.mark.parametrize("rows", [1, 3, 16, 37])
def test_a_linear_layer_is_its_twin(shop: Workshop, inputs: int, outputs: int, rows: int, bias: bool) -> None:
    layer, x = nn.Linear(inputs, outputs, bias=bias), some(2, rows, inputs)
    wanted = Twin(layer.weight, layer.bias)(x)
    assert off(RoundedLinear(layer, shop)(x), wanted) < 1e-5
    assert 0 < off(wanted, layer(x)) < 0.01
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert off(RoundedLinear(layer, shop)(turned), wanted) < 1e-5, "however it lies"


@pytest.mark.parametrize(("channels", "outputs"), [(16, 4), (32, 32), (192, 64), (256, 80)])
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (7, 5)])
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 150])
def test_a_convolution_is_its_twin(
    shop: Workshop, channels: int, outputs: int, kernel: int, dilation: int, columns: int
) -> None:
    layer = same_conv(channels, outputs, kernel, dilation=dilation, causal=True)
    x = some(2, channels, columns)
    got, padded = RoundedConv1d(layer, shop)(x), F.pad(x, (layer.left, layer.right))
    assert got.shape == (2, outputs, columns)
    assert off(got, conv_twin(layer, padded)) < 1e-5
    assert 0 < off(got, layer(x)) < 0.02


def test_silence_stays_silent(shop: Workshop) -> None:
    layer = same_conv(32, 8, 3, causal=True)
    assert torch.equal(RoundedConv1d(layer, shop)(torch.zeros(1, 32, 40)), layer(torch.zeros(1, 32, 40)))


def test_a_snake_is_torchs(shop: Workshop) -> None:
    plain = Snake(6)
    plain.alpha.copy_(some(6).abs() * 5 + 0.05)
    own = OwnSnake(plain, shop)
    for columns in (1, 15, 16, 70):
        x = some(2, 6, columns) * 20
        assert (own(x) - plain(x)).abs().max() < 1e-4
        room = torch.full((2, 6, columns + 9), 7.0)
        own.write(x, room[..., 4 : 4 + columns])
        assert (room[..., :4] == 7).all()
        assert (room[..., 4 + columns :] == 7).all()
        assert torch.equal(room[..., 4 : 4 + columns], own(x))
    across = some(1, 70, 6).transpose(1, 2)
    assert (own(across) - plain(across)).abs().max() < 1e-4, "however it lies"


@pytest.mark.parametrize(("queries", "keys"), [(16, 1), (16, 16), (37, 70), (200, 15)])
def test_attention_over_rounded_keys_is_near_torchs(shop: Workshop, queries: int, keys: int) -> None:
    q, k, v = (some(2, n, 3, 64, seed=n).transpose(1, 2) for n in (queries, keys, keys + 1))
    v = v[:, :, :keys]
    own, plain = OwnAttend(shop), AttentionProduct()
    got = own(q, k, v, None)
    rounded = [dequantized(x.reshape(-1, 64), 64).view(x.shape).float() for x in (q, k)]
    assert off(got, plain(*rounded, v, None)) < 1e-5, "its twin"
    assert off(got, plain(q, k, v, None)) < 0.02
    mask = torch.ones(1, 1, queries, keys, dtype=torch.bool).tril()
    assert torch.equal(own(q, k, v, mask), plain(q, k, v, mask)), "with a mask, torch does it"
    few = q[:, :, :15]
    assert torch.equal(own(few, k, v, None), plain(few, k, v, None))


def test_any_number_of_threads_gives_the_same_bits(shop: Workshop) -> None:
    layer, conv = nn.Linear(128, 192), same_conv(64, 64, 7, causal=True)
    x, y = some(37, 128), some(1, 64, 333)
    linear, convolution, attend = RoundedLinear(layer, shop), RoundedConv1d(conv, shop), OwnAttend(shop)
    q = some(1, 3, 50, 64)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append((linear(x), convolution(y), attend(q, q, q, None)))
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_threads_that_render_at_once_do_not_meet(shop: Workshop) -> None:
    conv = RoundedConv1d(same_conv(64, 64, 3, causal=True), shop)
    given = [some(1, 64, 200 + 31 * n, seed=n) for n in range(4)]
    wanted, wrong = [conv(x) for x in given], []

    def render(x: Tensor, right: Tensor) -> None:
        with torch.inference_mode():
            wrong.extend(n for n in range(50) if not torch.equal(conv(x), right))

    threads = [Thread(target=render, args=pair) for pair in zip(given, wanted, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.fixture(scope="module")
def flow() -> Flow:
    torch.manual_seed(0)
    return Flow(WREN.flow).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def hift() -> Hift:
    torch.manual_seed(1)
    return Hift(WREN.hift).eval().requires_grad_(False)


def mel_of(flow: Flow) -> Tensor:
    voice = Voice.checked(
        name="random",
        family="wren",
        speaker=torch.rand(256, generator=torch.Generator().manual_seed(2)),
        prompt_ids=torch.zeros(0, dtype=torch.int64),
        flow_prompt_ids=torch.arange(6),
        flow_prompt_mel=some(12, 80),
        flow_speaker=some(WREN.flow.speaker_width),
    )
    stream = MelStream(flow, voice, seed=1, streaming=True)
    return torch.cat([stream.push(IDS[:5], final=False), stream.push(IDS[5:], final=True)], dim=1)


def samples_of(hift: Hift) -> Tensor:
    stream = SampleStream(hift, seed=1, streaming=True)
    mel = some(80, 24)
    parts = [stream.push(mel[:, :10], final=False), stream.push(mel[:, 10:], final=True)]
    return torch.cat([torch.from_numpy(part) for part in parts])


def test_a_rounded_flow_says_nearly_the_same(flow: Flow, shop: Workshop) -> None:
    rounded = rounded_flow(flow, shop)
    assert 0 < off(mel_of(rounded), mel_of(flow)) < 0.03
    assert rounded_flow(rounded, shop) is rounded
    pack_for_rendering(rounded)
    assert 0 < off(mel_of(rounded), mel_of(flow)) < 0.03
    left = [name for name, part in rounded.named_modules() if isinstance(part, nn.Linear)]
    assert all("time_" in name or ".mlp." in name or "affine" in name or "proj" in name for name in left)


def test_a_rounded_vocoder_sounds_nearly_the_same(hift: Hift, shop: Workshop) -> None:
    rounded = rounded_vocoder(hift, shop)
    assert 0 < off(samples_of(rounded), samples_of(hift)) < 0.1
    assert rounded_vocoder(rounded, shop) is rounded
    kept = (rounded.conv_pre, rounded.conv_post, rounded.f0_predictor, *rounded.source_downs)
    assert not any(isinstance(part, RoundedConv1d) for net in kept for part in net.modules())
    rounds = [part for part in rounded.resblocks.modules() if isinstance(part, nn.Conv1d)]
    assert rounds
    assert all(isinstance(part, RoundedConv1d) for part in rounds)


def test_the_plain_networks_stay_as_they_were(flow: Flow, hift: Hift, shop: Workshop) -> None:
    before = [mel_of(flow), samples_of(hift)]
    rounded_flow(flow, shop), rounded_vocoder(hift, shop)
    assert all(torch.equal(a, b) for a, b in zip(before, (mel_of(flow), samples_of(hift)), strict=True))
    layers = [part for net in (flow, hift) for part in net.modules()]
    assert not any(isinstance(part, RoundedConv1d | RoundedLinear | OwnSnake) for part in layers)


@pytest.fixture
def on_arm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(target, "of_this_machine", lambda: replace(found, name="neon"))
    able.layers_refusal.cache_clear()
    yield
    able.layers_refusal.cache_clear()


def test_on_x86_they_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "of_this_machine", lambda: replace(found, name="avx512"))
    able.layers_refusal.cache_clear()
    assert "torch's own threads" in (able.layers_refusal() or "")
    able.layers_refusal.cache_clear()


def test_a_trial_is_made_and_passed() -> None:
    assert 0 < able.layers_error() < able.NEAR / 2


@pytest.mark.usefixtures("on_arm")
@pytest.mark.parametrize("error", [0.5, float("nan")])
def test_layers_that_compute_something_else_are_not_trusted(
    monkeypatch: pytest.MonkeyPatch, error: float
) -> None:
    monkeypatch.setattr(able, "layers_error", lambda home: error)
    assert "answers' spread in a trial" in (able.layers_refusal() or "")


@pytest.mark.usefixtures("on_arm")
def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(able, "find_spec", lambda name: None)
    assert "pip install" in (able.layers_refusal() or "")
