"""The float32 vocoder with fewer multiplications: each convolution equals torch's, whole and in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("llvmlite")
from backends.cpu.rendered import noise, rms_error, samples_of

from nightingale.backends.cpu import capabilities
from nightingale.backends.cpu.int8_layers import FusedSnake
from nightingale.backends.cpu.kernels.target import detect_target
from nightingale.backends.cpu.kernels.winograd_conv1d import transforms
from nightingale.backends.cpu.winograd_networks import WinogradConv1d, WinogradResBlock, winograd_vocoder
from nightingale.backends.torch.sample_stream import render_samples
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift, ResBlock, Snake
from nightingale.models.layers.conv import same_conv

if isinstance(found := detect_target(), str):
    pytest.skip(found, allow_module_level=True)
SMALL = HiftConfig(base_channels=64, resblock_kernels=(3, 7, 11), source_kernels=(7, 7, 11), f0_channels=16)
RELATIVE_ERROR = 1e-5
"""The bound for a whole vocoder; rounding alone gives 3e-6."""


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def test_the_transforms_compute_a_convolution_exactly() -> None:
    a, g, b = transforms()
    taps, inputs = np.array([3.0, -1.0, 2.0, 0.5]), np.arange(7.0) ** 2
    expected = [taps @ inputs[start : start + 4] for start in range(4)]
    assert a @ ((g @ taps) * (b @ inputs)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("columns", [1, 15, 64, 257, 1100])
@pytest.mark.parametrize(("taps", "dilation"), [(1, 1), (3, 1), (3, 5), (4, 2), (7, 3), (11, 1), (11, 5)])
@pytest.mark.parametrize("causal", [False, True])
def test_a_convolution_equals_torchs(columns: int, taps: int, dilation: int, causal: bool) -> None:
    torch.manual_seed(taps)
    plain = same_conv(24, 16, taps, dilation=dilation, causal=causal).requires_grad_(False)
    snake = Snake(24).requires_grad_(False)
    snake.alpha.uniform_(0.3, 3)
    x, residual = noise(2, 24, columns), noise(2, 16, columns, seed=1)
    ours = WinogradConv1d(plain)
    assert (ours(x) - plain(x)).abs().max() < 1e-5
    both = ours.same(x, FusedSnake(snake), residual)
    assert (both - (plain(snake(x)) + residual)).abs().max() < 1e-5
    padded = F.pad(x, (plain.left, plain.right))
    assert (ours.convolve_unpadded(padded) - plain(x)).abs().max() < 1e-5


def test_rows_that_are_not_adjacent_are_read_where_they_are() -> None:
    plain = same_conv(8, 8, 3, causal=True).requires_grad_(False)
    wide = noise(1, 8, 90)
    assert torch.equal(
        WinogradConv1d(plain)(wide[..., 7:70]), WinogradConv1d(plain)(wide[..., 7:70].contiguous())
    )
    turned = noise(1, 63, 8).transpose(1, 2)
    assert torch.equal(WinogradConv1d(plain)(turned), WinogradConv1d(plain)(turned.contiguous()))


def test_results_depend_neither_on_threads_nor_on_the_batch() -> None:
    torch.manual_seed(0)
    block = WinogradResBlock(ResBlock(16, 11).requires_grad_(False))
    x = noise(3, 16, 1500)
    together = block(x)
    torch.set_num_threads(1)
    for row, own in zip(x, together, strict=True):
        assert torch.equal(block(row[None])[0], own)


def test_a_vocoder_equals_the_reference_whole_and_in_blocks() -> None:
    torch.manual_seed(1)
    plain = Hift(SMALL).eval().requires_grad_(False)
    ours = winograd_vocoder(plain)
    convs = [part for part in ours.resblocks.modules() if isinstance(part, torch.nn.Conv1d)]
    assert convs
    assert all(isinstance(part, WinogradConv1d) for part in convs)
    mel = noise(80, 60)
    whole, expected = (torch.from_numpy(render_samples(net, mel, seed=2)) for net in (ours, plain))
    assert rms_error(whole, expected) < RELATIVE_ERROR
    assert rms_error(samples_of(ours), samples_of(plain)) < RELATIVE_ERROR


def test_the_self_test_notices_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert capabilities.vocoder_test_error() < 1e-5
    monkeypatch.setattr(WinogradConv1d, "same", lambda self, x, *_, **__: x)
    assert capabilities.vocoder_test_error() > capabilities.MAX_ERROR
