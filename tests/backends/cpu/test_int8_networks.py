"""Int8 layers of the flow and the vocoder, compared with the same quantization in torch."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from threading import Thread

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("llvmlite")
from backends.cpu.rendered import mel_of, noise, rms_error, samples_of, voice_for
from backends.int8_reference import ReferenceInt8Linear

from nightingale.backends.cpu import capabilities, int8_layers, int8_networks
from nightingale.backends.cpu.int8_layers import CONTEXT, FusedSnake, Int8Conv1d, Int8Linear
from nightingale.backends.cpu.int8_networks import (
    Int8Attend,
    int8_flow,
)
from nightingale.backends.cpu.int8_resnet import Int8ResnetBlock, Int8RowsConv1d
from nightingale.backends.cpu.kernels import avx512_weights, flow_attention, vector_math
from nightingale.backends.cpu.kernels.jit import CompiledModule, compile_module
from nightingale.backends.cpu.kernels.render_operations import emit_render_module
from nightingale.backends.cpu.kernels.rows_linear import RowsEpilogue
from nightingale.backends.cpu.kernels.target import AVX512, Isa, Target, detect_target, host_target
from nightingale.backends.cpu.kernels.thread_pool import ThreadPool
from nightingale.backends.cpu.winograd_networks import (
    Int8ResBlock,
    WinogradConv1d,
    int8_vocoder,
    winograd_vocoder,
)
from nightingale.backends.shared import capability_checks
from nightingale.backends.shared.int8_blocks import block_size_for
from nightingale.backends.shared.quantize import quantize_blocks
from nightingale.backends.torch.mel_stream import render_mel
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift, ResBlock, Snake
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.s3gen.estimator import AttentionProduct, ResnetBlock
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.conv import same_conv
from nightingale.models.layers.streaming_state import StreamingState
from nightingale.models.layers.weight_layout import pack_for_rendering

if isinstance(found := detect_target(), str):
    pytest.skip(found, allow_module_level=True)
WREN = PRESETS["wren"]
ONE_CODE = 2e-4
"""The error if one of 40,000 inputs, which lies between two codes, is rounded to the other one: 9e-5 was seen."""


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def dequantized(x: Tensor, block: int) -> Tensor:
    """Return x (…, inputs) after quantization."""
    codes, scales = quantize_blocks(x, block)
    return (codes.double() * scales[..., None].double()).flatten(-2)


def reference_conv1d(layer: nn.Conv1d, x: Tensor, block: int | None = None) -> Tensor:
    if block is None:
        block = Int8Conv1d(layer).block
        assert block == (256 if layer.in_channels == 256 else block_size_for(layer.in_channels))
    weight = dequantized(layer.weight.transpose(1, 2), block).transpose(1, 2)
    given = dequantized(x.transpose(1, 2), block).transpose(1, 2)
    assert layer.bias is not None
    return F.conv1d(given, weight, layer.bias.double(), dilation=layer.dilation).float()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(192, 64), (128, 192), (768, 192)])
@pytest.mark.parametrize("rows", [1, 3, 16, 37])
def test_a_linear_layer_matches_the_reference(inputs: int, outputs: int, rows: int, bias: bool) -> None:
    layer, x = nn.Linear(inputs, outputs, bias=bias), noise(2, rows, inputs)
    rounded = Int8Linear(layer)
    wanted = ReferenceInt8Linear(layer.weight, layer.bias, block=rounded.block)(x)
    assert rounded.block == {192: 64, 128: 128, 768: 256}[inputs]
    assert rms_error(rounded(x), wanted) < 1e-5
    assert 0 < rms_error(wanted, layer(x)) < 0.01
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert rms_error(Int8Linear(layer)(turned), wanted) < 1e-5, "whatever its strides are"


@pytest.mark.parametrize(("channels", "outputs"), [(16, 4), (32, 32), (192, 64), (256, 80)])
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (7, 5)])
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 150])
def test_a_convolution_matches_the_reference(
    channels: int, outputs: int, kernel: int, dilation: int, columns: int
) -> None:
    layer = same_conv(channels, outputs, kernel, dilation=dilation, causal=True)
    x = noise(2, channels, columns)
    got, padded = Int8Conv1d(layer)(x), F.pad(x, (layer.left, layer.right))
    assert got.shape == (2, outputs, columns)
    assert rms_error(got, reference_conv1d(layer, padded)) < ONE_CODE
    assert 0 < rms_error(got, layer(x)) < 0.02


def test_zeros_stay_zeros() -> None:
    layer = same_conv(32, 8, 3, causal=True)
    assert torch.equal(Int8Conv1d(layer)(torch.zeros(1, 32, 40)), layer(torch.zeros(1, 32, 40)))


def test_snake_matches_torch() -> None:
    plain = Snake(6)
    plain.alpha.copy_(noise(6).abs() * 5 + 0.05)
    own = FusedSnake(plain)
    for columns in (1, 15, 16, 70):
        x = noise(2, 6, columns) * 20
        assert (own(x) - plain(x)).abs().max() < 1e-4
        padded = torch.full((2, 6, columns + 9), 7.0)
        own.write(x, padded[..., 4 : 4 + columns])
        assert (padded[..., :4] == 7).all()
        assert (padded[..., 4 + columns :] == 7).all()
        assert torch.equal(padded[..., 4 : 4 + columns], own(x))
    across = noise(1, 70, 6).transpose(1, 2)
    assert (own(across) - plain(across)).abs().max() < 1e-4, "whatever its strides are"


@pytest.mark.parametrize("rows", [1, 6, 37])
def test_norm_activation_and_residual_are_part_of_a_linear_layer(rows: int) -> None:
    layer, norm, x = nn.Linear(256, 64), nn.LayerNorm(256), noise(rows, 256) * 3 + 1
    norm.weight.copy_(noise(256, seed=1))
    norm.bias.copy_(noise(256, seed=2))
    rounded = Int8Linear(layer)
    reference = ReferenceInt8Linear(layer.weight, layer.bias, block=rounded.block)
    out, residual = torch.empty(rows, 64), noise(rows, 64, seed=3)
    added = residual.clone()
    operations = [
        rounded.operation(x, out, norm=norm, epilogue=RowsEpilogue.GELU),
        rounded.operation(x, added, epilogue=RowsEpilogue.ADD),
    ]
    CONTEXT.run_all(operations, thread_bytes=rounded.thread_bytes)
    assert (out - F.gelu(reference(norm(x)))).abs().max() < 2e-3, "a code may be rounded the other way"
    assert rms_error(added, reference(x) + residual) < 1e-5


@pytest.mark.parametrize("columns", [5, 16, 70])
def test_snake_and_residual_are_part_of_a_convolution(columns: int) -> None:
    layer, snake, x = same_conv(32, 32, 7, dilation=3, causal=False), Snake(32), noise(2, 32, columns)
    snake.alpha.copy_(noise(32).abs() * 3 + 0.1)
    rounded = Int8Conv1d(layer)
    wanted = reference_conv1d(layer, F.pad(snake(x), (layer.left, layer.right))) + x
    assert rms_error(rounded.same(x, FusedSnake(snake), residual=x), wanted) < 1e-4


def test_an_int8_vocoder_is_close_to_float32(hift: Hift) -> None:
    rounded, mel, source = int8_vocoder(hift), noise(1, 80, 12), noise(1, 1, 480 * 12) * 0.1
    expected = hift.log_spectrum(mel, source)
    assert 0 < rms_error(rounded.log_spectrum(mel, source), expected) < 0.02
    blocks = [part for part in rounded.modules() if isinstance(part, ResBlock)]
    assert blocks
    assert all(isinstance(part, Int8ResBlock) for part in blocks)


def quantized_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with weights and values that are quantized by blocks of 64 keys; rounded weights sum up to 1."""
    logits = q.double() @ k.double().transpose(-1, -2) / 8 * math.log2(math.e)
    wide = host_target().isa == Isa.AVX512  # codes of 8 bits without a sign
    largest, lowest = (avx512_weights.CODE_AT_PEAK, -20.0) if wide else (127, flow_attention.MIN_EXPONENT)
    total, weight_sum = torch.zeros_like(q).double(), torch.zeros_like(q[..., :1]).double()
    for start in range(0, k.shape[-2], 64):
        part, values = logits[..., start : start + 64], v[..., start : start + 64, :].double()
        peak = part.amax(-1, keepdim=True)
        s = (part - peak).clamp(min=lowest)
        c1, c2 = vector_math.EXP2_ROOT_SERIES
        weights, v_scale = (1 + c1 * s + c2 * s * s) ** 16, values.abs().amax(-2, keepdim=True) / 127
        assert (weights - 2**s).abs().max() < 2.5e-4, "a thirtieth of a code"
        rounded = (weights * largest).round() * 2 ** (peak - logits.amax(-1, keepdim=True))
        total += rounded @ ((values / v_scale).round() * v_scale)
        weight_sum += rounded.sum(-1, keepdim=True)
    return (total / weight_sum).float()


@pytest.mark.parametrize(("queries", "keys"), [(16, 1), (16, 16), (37, 70), (200, 15)])
def test_attention_with_quantized_keys_is_close_to_torch(queries: int, keys: int) -> None:
    q, k, v = (noise(2, n, 3, 64, seed=n).transpose(1, 2) for n in (queries, keys, keys + 1))
    v = v[:, :, :keys]
    own, plain = Int8Attend(), AttentionProduct()
    got = own(q, k, v, None)
    rounded = [dequantized(x.reshape(-1, 64), 64).view(x.shape).float() for x in (q, k)]
    bound = (
        2e-3 if host_target().isa == Isa.AVX512 else 1e-3
    )  # 16 bits round one weight in 16 to another code
    assert rms_error(got, quantized_attention(*rounded, v)) < bound, "the same quantization in torch"
    assert rms_error(got, plain(q, k, v, None)) < 0.02
    mask = torch.ones(1, 1, queries, keys, dtype=torch.bool).tril()
    assert torch.equal(own(q, k, v, mask), plain(q, k, v, mask)), "with a mask, torch computes it"
    few = q[:, :, :15]
    assert torch.equal(own(few, k, v, None), plain(few, k, v, None))


def test_any_number_of_threads_gives_the_same_bits() -> None:
    layer, conv = nn.Linear(128, 192), same_conv(64, 64, 7, causal=True)
    x, y = noise(37, 128), noise(1, 64, 333)
    linear, convolution, attend = Int8Linear(layer), Int8Conv1d(conv), Int8Attend()
    rows = Int8RowsConv1d(same_conv(64, 64, 3, causal=True))
    q = noise(1, 3, 50, 64)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append((linear(x), convolution(y), rows(y), attend(q, q, q, None)))
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_threads_that_render_at_once_do_not_interfere() -> None:
    conv = Int8Conv1d(same_conv(64, 64, 3, causal=True))
    given = [noise(1, 64, 200 + 31 * n, seed=n) for n in range(4)]
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
    return (
        Hift(
            HiftConfig(base_channels=256, resblock_kernels=(3, 7), source_kernels=(5, 5, 5), f0_channels=256)
        )
        .eval()
        .requires_grad_(False)
    )


def test_an_int8_flow_is_close_to_float32(flow: Flow) -> None:
    rounded = int8_flow(flow)
    assert 0 < rms_error(mel_of(rounded), mel_of(flow)) < 0.03
    assert torch.equal(mel_of(int8_flow(rounded)), mel_of(rounded))
    pack_for_rendering(rounded)
    assert 0 < rms_error(mel_of(rounded), mel_of(flow)) < 0.03
    left = [name for name, part in rounded.named_modules() if isinstance(part, nn.Linear)]
    in_estimator = [name for name in left if name.startswith("decoder.estimator.")]
    assert len(in_estimator) == 7, "the embeddings of time stay in float32"
    assert all("time_" in name or ".mlp." in name for name in in_estimator)
    assert set(left) - set(in_estimator) == {"spk_embed_affine_layer", "encoder_proj"}


@pytest.mark.parametrize("meanflow", [False, True])
def test_a_whole_int8_flow_is_close_to_float32(meanflow: bool) -> None:
    """Ten guided steps add up more errors than two."""
    torch.manual_seed(0)
    config = replace(WREN.flow, block_causal=False, left_context=None, meanflow=meanflow, noise_scale=1.0)
    plain = Flow(config).eval().requires_grad_(False)
    voice, ids = voice_for(plain, prompt_tokens=25), list(range(0, 6560, 164))
    exact, rounded = (render_mel(net, ids, voice, seed=1) for net in (plain, int8_flow(plain)))
    assert 0 < rms_error(rounded, exact) < 0.02
    assert torch.equal(render_mel(int8_flow(plain), ids, voice, seed=1), rounded)


@pytest.mark.parametrize("frames", [1, 5, 37, 150])
def test_a_residual_block_with_norms_and_sums_in_its_convolutions(frames: int) -> None:
    plain = ResnetBlock(128, 64, 24).requires_grad_(False)
    for conv_block in (plain.block1, plain.block2):
        norm = conv_block.block["2"]
        norm.weight.copy_(noise(64)), norm.bias.copy_(noise(64))
    x, time = noise(2, 128, frames), noise(2, 24)
    rounded = Int8ResnetBlock(copy.deepcopy(plain))
    whole = rounded(x, time)
    assert 0 < rms_error(whole, plain(x, time)) < 0.02
    state, blocks = None, []
    for block in x.split(16, dim=2):
        # A copy, because modules take states in the order in which they are called.
        state = StreamingState(None if state is None else state.saved())
        blocks.append(rounded(block, time, state))
    assert rms_error(torch.cat(blocks, dim=2), whole) < 1e-5


@pytest.mark.parametrize(("channels", "outputs"), [(64, 128), (256, 64), (512, 64)])
@pytest.mark.parametrize(("kernel", "causal"), [(1, True), (3, True), (3, False), (4, False)])
@pytest.mark.parametrize("columns", [1, 5, 37, 150])
def test_a_convolution_over_rows_matches_the_reference(
    channels: int, outputs: int, kernel: int, causal: bool, columns: int
) -> None:
    layer, x = same_conv(channels, outputs, kernel, causal=causal), noise(2, channels, columns)
    padded = F.pad(x, (layer.left, layer.right))
    own, wanted = Int8RowsConv1d(layer), reference_conv1d(layer, padded, block=min(channels, 256))
    got = own(x)
    assert got.shape == (2, outputs, columns)
    assert rms_error(got, wanted) < ONE_CODE
    assert rms_error(own.convolve_unpadded(padded), wanted) < ONE_CODE
    assert torch.equal(own(x.transpose(1, 2).contiguous().transpose(1, 2)), got), "whatever its strides are"
    assert 0 < rms_error(got, layer(x)) < 0.02


@pytest.mark.thorough
def test_larger_tiles_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of the size of AVX-512, with the instructions of this machine."""
    q, k, v = (noise(1, 2, 70, 64) for _ in range(3))
    x, conv = noise(1, 32, 45), Int8Conv1d(same_conv(32, 8, 3, dilation=2, causal=True))

    def results() -> tuple[Tensor, Tensor]:
        return Int8Attend()(q, k, v, None), conv(x)

    small = results()
    assert not isinstance(found, str)
    wide = replace(found, attention_tiles=AVX512.attention_tiles, conv_columns=AVX512.conv_columns)
    fresh = int8_layers.KernelContext()
    monkeypatch.setattr(int8_layers, "host_target", lambda: wide)
    monkeypatch.setattr(fresh, "_pools", {torch.get_num_threads(): pool_of(wide)})
    for module in (int8_layers, int8_networks):
        monkeypatch.setattr(module, "CONTEXT", fresh)
    assert all(torch.equal(a, b) for a, b in zip(small, results(), strict=True))


def pool_of(target: Target) -> ThreadPool:
    module, machine = compile_module(emit_render_module(target), target)
    compiled = CompiledModule(machine.emit_object(module), target)
    return ThreadPool(compiled, torch.get_num_threads(), max_ops=int8_layers.MAX_OPERATIONS)


def test_the_original_networks_are_not_changed(flow: Flow, hift: Hift) -> None:
    before = [mel_of(flow), samples_of(hift)]
    int8_flow(flow), winograd_vocoder(hift)
    assert all(torch.equal(a, b) for a, b in zip(before, (mel_of(flow), samples_of(hift)), strict=True))
    layers = [part for net in (flow, hift) for part in net.modules()]
    assert not any(isinstance(part, Int8Conv1d | Int8Linear | FusedSnake | WinogradConv1d) for part in layers)


@pytest.fixture
def asked_again() -> Iterator[None]:
    capabilities.layers_unsupported_reason.cache_clear()
    yield
    capabilities.layers_unsupported_reason.cache_clear()


def test_the_self_test_passes() -> None:
    assert 0 < capabilities.layers_test_error() < capabilities.MAX_ERROR / 2


@pytest.mark.usefixtures("asked_again")
@pytest.mark.parametrize("error", [0.5, float("nan")])
def test_layers_that_fail_their_self_test_are_not_used(monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    monkeypatch.setattr(capabilities, "layers_test_error", lambda: error)
    assert "failed their self-test" in (capabilities.layers_unsupported_reason() or "")


@pytest.mark.usefixtures("asked_again")
def test_without_the_package_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability_checks, "find_spec", lambda name: None)
    assert "pip install" in (capabilities.layers_unsupported_reason() or "")
