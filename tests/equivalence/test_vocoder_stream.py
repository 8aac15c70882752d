"""Streams of both vocoders equal the whole and hold back no more than their lookahead.

Tests of HiFT use float64, where the two differ only by the rounding of the result to float32. In float32 f0
differs by a hundredth of a millihertz, because a convolution rounds its sums depending on the length of its
input, and the phase accumulates that. The frame-rate vocoder rounds phases, so a difference may
move one by 2⁻²⁰ of a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from models.test_frame_vocoder import random_vocoder
from torch import Tensor

from nightingale.backends.torch.sample_stream import (
    CrossfadedStream,
    SampleStream,
    harmonic_phase,
    open_sample_stream,
    render_samples,
    source_noise,
)
from nightingale.models.chatterbox.build import Vocoder
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.hift.hift_stream import HiftStream
from nightingale.models.chatterbox.hift.receptive_field import lookahead_samples, mel_span, source_span
from nightingale.models.frame_vocoder.config import DELAY_SAMPLES
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale.types import Samples
from nightingale_lab.bench.seams import seam_report

FRAMES = 79
CUTS = {
    "ones": [1] * 14,
    "sevens": [7] * 4,
    "uneven": [3, 25, 1, 50],
    "whole": [30],
    "ramp": [14, 8, 12, 16, 5],
    "with empty blocks": [2, 0, 0, 30, 0, 9, 0],
}
MIXED = (3, 7)


def hift(*, kernels: tuple[int, ...] = MIXED, source: tuple[int, ...] = (3, 5, 7)) -> Hift:
    """Return a narrow HiFT with random weights whose f0 is voiced and unvoiced."""
    config = HiftConfig(base_channels=16, resblock_kernels=kernels, source_kernels=source, f0_channels=8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        net = Hift(config)
    classifier = net.f0_predictor.classifier
    classifier.weight.data *= 4000
    classifier.bias.data.fill_(-80.0)
    return net.double().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def framewise() -> FrameVocoder:
    """Return a frame-rate vocoder of a steady pitch, whose phases are not rounded differently in blocks."""
    net = random_vocoder()
    net.pitch_predictor.classifier.weight.zero_()
    net.pitch_predictor.classifier.bias.fill_(151.3)
    return net


@pytest.fixture(scope="module")
def two_sided() -> Hift:
    return hift()


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def mel(frames: int = FRAMES, seed: int = 1) -> Tensor:
    return torch.randn(80, frames, generator=torch.Generator().manual_seed(seed))


def streamed(vocoder: Vocoder, seed: int = 3) -> SampleStream:
    return open_sample_stream(vocoder, seed=seed, streaming=True)


def in_blocks(stream: SampleStream, mel: Tensor, cuts: Sequence[int]) -> list[Samples]:
    ends = np.cumsum(cuts)
    return [
        stream.push(mel[:, end - cut : end], final=i == len(cuts) - 1)
        for i, (cut, end) in enumerate(zip(cuts, ends, strict=True))
    ]


def assert_equal_within(got: Samples, whole: Samples, bound: float = 1e-7) -> None:
    assert got.shape == whole.shape
    difference = np.abs(got - whole)
    assert difference.max() <= bound, f"max {difference.max():.2e} at {difference.argmax()}"


def test_f0_of_the_test_vocoder_is_voiced_and_unvoiced(two_sided: Hift) -> None:
    f0_hz = two_sided.f0_predictor(mel()[None].double())
    assert f0_hz.min() < 10 < 200 < f0_hz.max()


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_a_frame_rate_vocoder_in_blocks_equals_the_whole(framewise: FrameVocoder, cuts: list[int]) -> None:
    mels = mel(sum(cuts))
    blocks = in_blocks(streamed(framewise), mels, cuts)
    assert_equal_within(np.concatenate(blocks), render_samples(framewise, mels, seed=3), 1e-5)


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_in_float32_the_difference_is_below_1e_5(cuts: list[int]) -> None:
    net = hift().float()
    net.f0_predictor.classifier.weight *= 0.1
    net.f0_predictor.classifier.bias.fill_(90.0)
    mels = mel(sum(cuts))
    blocks = in_blocks(CrossfadedStream(net, seed=3, hold_frames=20), mels, cuts)
    assert_equal_within(np.concatenate(blocks), render_samples(net, mels, seed=3), 1e-5)


@pytest.mark.parametrize("seed", range(2))
def test_random_blocks_equal_the_whole(two_sided: Hift, seed: int) -> None:
    cuts = np.random.default_rng(seed).integers(0, 24, 6).tolist()
    mels = mel(sum(cuts), seed)
    blocks = in_blocks(CrossfadedStream(two_sided, seed=seed, hold_frames=30), mels, cuts)
    assert_equal_within(np.concatenate(blocks), render_samples(two_sided, mels, seed=seed))


@pytest.mark.parametrize("cuts", [[5] * 16, [14, 8, 12, 16, 30], [30, 50]], ids=str)
def test_a_stream_has_no_discontinuities(framewise: FrameVocoder, cuts: list[int]) -> None:
    blocks = in_blocks(streamed(framewise), mel(sum(cuts)), cuts)
    boundaries = np.cumsum([len(block) for block in blocks])[:-1].tolist()
    samples = np.concatenate(blocks)
    assert seam_report(samples, boundaries, 24_000).clean
    hole = np.insert(samples, boundaries[0], np.zeros(240, np.float32))
    assert seam_report(hole, boundaries[:1], 24_000).seams == (boundaries[0],)


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_a_two_sided_vocoder_with_its_whole_lookahead_equals_the_whole(
    two_sided: Hift, cuts: list[int]
) -> None:
    mels = mel(sum(cuts))
    hold = -(-lookahead_samples(two_sided) // 480)
    blocks = in_blocks(CrossfadedStream(two_sided, seed=3, hold_frames=hold), mels, cuts)
    assert_equal_within(np.concatenate(blocks), render_samples(two_sided, mels, seed=3))


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_a_two_sided_vocoder_emits_every_sample_once(two_sided: Hift, cuts: list[int]) -> None:
    mels = mel(sum(cuts))
    blocks = in_blocks(streamed(two_sided), mels, cuts)
    known = np.cumsum(cuts) * 480
    expected = [*np.maximum(0, known[:-1] - 4 * 480), known[-1]]
    assert np.cumsum([len(block) for block in blocks]).tolist() == expected


def test_a_two_sided_vocoder_equals_the_whole_away_from_boundaries(two_sided: Hift) -> None:
    """Provisional samples are replaced: differences are near a boundary only."""
    mels, cut = mel(100), 50
    got = np.concatenate(in_blocks(streamed(two_sided), mels, [cut, 50]))
    differs = np.nonzero(np.abs(got - render_samples(two_sided, mels, seed=3)) > 1e-7)[0]
    assert differs.min() >= 480 * cut - lookahead_samples(two_sided)
    assert differs.max() < 480 * (cut - 4) + 120


@pytest.mark.parametrize("streaming", [True, False])
def test_without_streaming_the_samples_are_bitwise_the_whole(
    framewise: FrameVocoder, streaming: bool
) -> None:
    blocks = in_blocks(open_sample_stream(framewise, seed=3, streaming=False), mel(), CUTS["uneven"])
    assert [len(block) for block in blocks] == [0, 0, 0, 480 * FRAMES]
    assert np.array_equal(blocks[-1], render_samples(framewise, mel(), seed=3))
    nothing = open_sample_stream(framewise, seed=3, streaming=streaming).push(mel(0), final=True)
    assert nothing.shape == (0,)
    assert nothing.dtype == np.float32


def test_later_frames_never_change_earlier_samples(framewise: FrameVocoder) -> None:
    original, other = mel(), mel(seed=2)
    other[:, :40] = original[:, :40]
    one, two = (streamed(framewise) for _ in range(2))
    assert np.array_equal(one.push(original[:, :40], final=False), two.push(other[:, :40], final=False))
    assert not np.array_equal(one.push(original[:, 40:], final=True), two.push(other[:, 40:], final=True))


def test_two_streams_through_one_network_are_independent(framewise: FrameVocoder) -> None:
    alone = in_blocks(streamed(framewise), mel(), CUTS["uneven"])
    one, other = (streamed(framewise, seed) for seed in (3, 4))
    at = 0
    for i, cut in enumerate(CUTS["uneven"]):
        other.push(mel(5, seed=i), final=False)
        assert np.array_equal(one.push(mel()[:, at : at + cut], final=i == 3), alone[i])
        at += cut


def test_a_frame_rate_vocoder_holds_back_three_frames_and_180_samples(framewise: FrameVocoder) -> None:
    assert DELAY_SAMPLES == 3 * 480 + 180
    stream = streamed(framewise)
    assert len(stream.push(mel(3), final=False)) == 0
    assert len(stream.push(mel(1), final=False)) == 480 - 180
    assert len(stream.push(mel(9), final=False)) == 9 * 480
    assert len(stream.push(mel(0), final=True)) == 3 * 480 + 180


def test_the_state_of_a_stream_does_not_grow(two_sided: Hift) -> None:
    stream = HiftStream(two_sided, phase=harmonic_phase(0), noise=source_noise(0))
    sizes = []
    for _ in range(30):
        stream.push(mel(6)[None].double(), final=False)
        sizes.append(sum(kept.numel() for kept in stream._kept.values()))
    assert len(set(sizes[5:])) == 1


def changed(before: Tensor, after: Tensor) -> tuple[int, int]:
    places = (before != after)[0].nonzero()
    return int(places[0]), int(places[-1])


@pytest.mark.parametrize("kernels", [(3,), (3, 7), (11,)])
def test_the_computed_receptive_field_is_the_measured_one(kernels: tuple[int, ...]) -> None:
    """Change one frame of mel, or its excitation, and compare the samples that change."""
    net = hift(kernels=kernels)
    frames, at = 60, 25
    clean = mel(frames).double()[None]
    source = torch.rand(1, 1, 480 * frames, generator=torch.Generator().manual_seed(0)).double()
    other_mel, other_source = clean.clone(), source.clone()
    other_mel[..., at] += 1
    other_source[..., 480 * at : 480 * (at + 1)] += 0.5
    reference = net(clean, source)
    for measured, computed in (
        (changed(reference, net(other_mel, source)), mel_span(net)),
        (changed(reference, net(clean, other_source)), source_span(net)),
    ):
        # Far from the centre a change may be too small even for float64.
        first, last = (480 * at + edge for edge in computed)
        assert first <= measured[0] <= first + 120
        assert last - 120 <= measured[1] <= last


def test_no_sample_depends_on_frames_beyond_the_lookahead() -> None:
    net = hift()
    known = 40
    original, other = mel(60), mel(60, seed=2)
    other[:, :known] = original[:, :known]
    difference = np.abs(render_samples(net, original, seed=3) - render_samples(net, other, seed=3))
    first = int(np.nonzero(difference > 1e-7)[0][0])
    settled = 480 * known - lookahead_samples(net)
    # The outermost frames of a two-sided field have too little effect for float32.
    assert settled <= first < settled + 4 * 480


def test_the_receptive_field_of_the_shipped_sizes() -> None:
    with torch.device("meta"):
        official = Hift(HiftConfig(base_channels=32))
    assert lookahead_samples(official) == 9240
    assert mel_span(official) == (-6300, 6783)
