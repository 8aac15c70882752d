"""HiFT's Triton kernels give the samples of library calls.

With a GPU they are compiled; without one they run in Triton's interpreter.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from parity.tiny import TINY_HIFT, fill, gaussian
from torch import Tensor

from nightingale.backends.cuda.bucketed_vocoder import BucketedVocoder
from nightingale.models.chatterbox.hift.config import HARMONICS, HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift

pytestmark = pytest.mark.thorough  # Triton's interpreter takes seconds for a kernel

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


def render(vocoder: BucketedVocoder, mel: Tensor, frames: list[int]) -> Tensor:
    batch, harmonics = len(mel), HARMONICS
    zeros = torch.zeros(batch, dtype=torch.int64, device=DEVICE)
    start = torch.zeros(batch, harmonics, 1, device=DEVICE)
    samples, _ = vocoder(
        mel,
        frames=torch.tensor(frames, device=DEVICE),
        key=zeros + 5,
        first_frame=zeros,
        phase=start,
        cycles=start.double(),
        anchor=zeros,
    )
    return samples.clone()


def both(
    config: HiftConfig, frames: list[int], bucket: int, precision: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Return samples by the kernels and by library calls.

    The weights of a vocoder of full size are drawn as torch does: with larger ones it amplifies rounding.
    """
    torch.manual_seed(0)
    hift = (Hift(config).eval() if config == HiftConfig() else fill(Hift(config))).to(DEVICE)
    mel = gaussian((len(frames), 80, max(frames)), 1).to(DEVICE)
    given: dict[str, Any] = {"batches": (len(frames) + 1,), "frames": (bucket,)}
    # Left alone, cuDNN rounds inputs to ten bits, and so would the kernels.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        triton = BucketedVocoder(hift, kernels="triton", **given, precision=precision)
        ours = render(triton, mel, frames)
        theirs = render(BucketedVocoder(hift, kernels="library", **given), mel, frames)
    assert theirs.abs().max() > 0.01
    return ours, theirs


@pytest.fixture
def large_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few programs in the interpreter, whose time they are."""
    from nightingale.backends.cuda.hift import packed_hift

    if not CUDA:
        monkeypatch.setattr(packed_hift, "TILES", (packed_hift.ConvTile(128, 64, 64, warps=4),))


@pytest.mark.usefixtures("large_tiles")
def test_windows_of_a_batch_are_those_of_library_calls() -> None:
    ours, theirs = both(TINY_HIFT, [2, 1], 3)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("large_tiles")
def test_a_window_without_frames_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory holds anything, and what is computed of that may overflow."""
    new_empty = Tensor.new_empty

    def new_full(self: Tensor, *given: Any, **options: Any) -> Tensor:
        made = new_empty(self, *given, **options)
        return made.fill_(1e30) if made.is_floating_point() else made

    monkeypatch.setattr(Tensor, "new_empty", new_full)
    with np.errstate(over="raise", invalid="raise"):
        ours, theirs = both(TINY_HIFT, [2, 1], 3)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("large_tiles")
def test_float16_costs_what_tf32_costs() -> None:
    """The error is 50 dB below the signal."""
    ours, theirs = both(TINY_HIFT, [1], 1, precision=torch.bfloat16)
    error = (ours - theirs).square().sum() / theirs.square().sum()
    assert 1e-9 < error < 1e-5


def test_snake_is_accurate_for_large_arguments() -> None:
    from nightingale.backends.cuda.hift.packed_hift import PackedConv, _Convolutions

    rows, alpha = 64, 1000.0
    x = torch.linspace(-6, 6, rows * 16, device=DEVICE).view(1, 1, rows, 16)
    table = torch.tensor([[0, 1, 0]], dtype=torch.int32, device=DEVICE)
    identity = PackedConv(torch.eye(16, device=DEVICE)[None], torch.zeros(1, 16, device=DEVICE), table)
    snakes = torch.tensor([alpha, 1.0], device=DEVICE)[:, None].expand(1, 1, 2, 16).contiguous()
    frames = torch.tensor([rows], dtype=torch.int32, device=DEVICE)
    convolve = _Convolutions(frames, {"PRECISION": "ieee", "PDL": False}, (1, 0))
    expected = x.double() + (x * alpha).double().sin().square()
    torch.testing.assert_close(convolve(x, identity, snakes=snakes).double(), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("scale", [1.0, 1.02, math.inf])
def test_kernels_that_differ_from_library_calls_are_dropped(
    scale: float, caplog: pytest.LogCaptureFixture
) -> None:
    vocoder = BucketedVocoder(fill(Hift(TINY_HIFT)).to(DEVICE), kernels="library")

    class Kernels:
        def compile(self, windows: int, frames: int) -> None: ...

        def columns(self, *given: Tensor) -> Tensor:
            return scale * vocoder._columns(*given).transpose(1, 2)

    vocoder.kernels.loaded = Kernels()
    vocoder.check_kernels(30)
    assert (vocoder.kernels.loaded is not None) == (scale == 1.0)
    assert ("the vocoder runs by library calls" in caplog.text) == (scale != 1.0)


def test_tiles_are_as_large_as_the_number_of_programs_allows() -> None:
    from nightingale.backends.cuda.hift.packed_hift import PROGRAMS, conv_tile

    for rows, sequences, outputs in [(256, 1, 256), (24480, 48, 64), (1632, 48, 256), (8160, 48, 18)]:
        tile = conv_tile(rows, sequences, outputs, wide=False)
        assert tile.outputs < 2 * outputs
        assert sequences * -(-rows // tile.rows) * -(-outputs // tile.outputs) >= min(PROGRAMS, 64)
        assert tile.rows == (128 if sequences > 1 else 32)


@pytest.mark.requires_cuda
@pytest.mark.parametrize(("frames", "bucket"), [([22], 32), ([70, 9, 204], 224)])
def test_on_a_gpu_graphs_of_full_size_give_the_samples_of_library_calls(
    frames: list[int], bucket: int
) -> None:
    for precision, bound in ((torch.float32, 1e-8), (torch.bfloat16, 1e-5)):
        ours, theirs = both(HiftConfig(), frames, bucket, precision=precision)
        assert (ours - theirs).square().sum() < bound * theirs.square().sum()


@pytest.mark.requires_cuda
def test_on_a_gpu_a_graph_gives_the_same_bits_each_time() -> None:
    hift = fill(Hift(HiftConfig())).to(DEVICE)
    vocoder = BucketedVocoder(hift, kernels="triton", precision=torch.bfloat16)
    mel = gaussian((4, 80, 72), 1).to(DEVICE)
    first = render(vocoder, mel, [72, 50, 1, 60])
    assert [graph.mode for graph in vocoder._graphs.values()] == ["graph"]
    for _ in range(20):
        assert torch.equal(render(vocoder, mel, [72, 50, 1, 60]), first)
