"""HiFT in graphs gives the samples of the reference in any bucket and any batch."""

from __future__ import annotations

import pytest
import torch
from backends.watching import HostWatch
from parity.tiny import TINY_HIFT, fill, gaussian
from torch import Tensor

from nightingale.backends.cuda.bucketed_vocoder import BucketedVocoder, source_noise
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.hift.config import HARMONICS, HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift

KEY = torch.tensor([1234567])


@pytest.fixture
def hift() -> Hift:
    """Use double precision, so that a difference is not rounding."""
    return fill(Hift(TINY_HIFT)).double()


def mel_of(frames: int, seed: int = 1) -> Tensor:
    return gaussian((1, 80, frames), seed).double()


@torch.inference_mode()
def reference(hift: Hift, mel: Tensor, phase: Tensor, key: Tensor = KEY) -> Tensor:
    noise = source_noise(key, torch.zeros(1, dtype=torch.int64), mel.shape[2])
    source, _ = hift.m_source(hift.f0_predictor(mel), phase, noise)
    return hift(mel, source)


def phase_of(seed: int) -> Tensor:
    return gaussian((1, HARMONICS, 1), seed)


def render(
    vocoder: BucketedVocoder, mel: Tensor, frames: Tensor, *, key: Tensor, phase: Tensor, **window: Tensor
) -> tuple[Tensor, Tensor]:
    """Render from the start of the utterance, unless a window is given."""
    zeros = torch.zeros_like(frames)
    start = {"first_frame": zeros, "anchor": zeros, "cycles": torch.zeros_like(phase, dtype=torch.float64)}
    return vocoder(mel, frames=frames, key=key, phase=phase, **start | window)


@pytest.mark.parametrize(("frames", "bucket"), [(7, 7), (7, 12), (1, 12)])
def test_a_padded_bucket_gives_the_samples_of_the_reference(hift: Hift, frames: int, bucket: int) -> None:
    mel, phase = mel_of(frames), phase_of(3)
    vocoder = BucketedVocoder(hift, batches=(1,), frames=(bucket,))
    samples, _ = render(vocoder, mel, torch.tensor([frames]), key=KEY, phase=phase)
    expected = reference(hift, mel, phase)
    assert samples.shape == expected.shape == (1, 480 * frames)
    torch.testing.assert_close(samples, expected, rtol=0, atol=1e-7)
    assert expected.abs().max() > 0.05


def test_each_utterance_of_a_batch_is_rendered_as_alone(hift: Hift) -> None:
    lengths, keys = [5, 9, 2], torch.tensor([7, 8, 9])
    mels, phases = [mel_of(n, n) for n in lengths], [phase_of(n) for n in lengths]
    whole = torch.cat([torch.nn.functional.pad(m, (0, 9 - m.shape[2])) for m in mels])
    vocoder = BucketedVocoder(hift, batches=(4,), frames=(10,))
    samples, _ = render(vocoder, whole, torch.tensor(lengths), key=keys, phase=torch.cat(phases))
    for row, (mel, phase) in enumerate(zip(mels, phases, strict=True)):
        expected = reference(hift, mel, phase, keys[row : row + 1])[0]
        torch.testing.assert_close(samples[row, : len(expected)], expected, rtol=0, atol=1e-7)


def test_a_window_in_the_middle_continues_the_whole(hift: Hift) -> None:
    """Rendered from frame 4 on with the cycles of frame 12, it equals the whole away from its edges."""
    mel, phase = mel_of(64), phase_of(3)
    vocoder = BucketedVocoder(hift, batches=(1,), frames=(64,))
    whole, cycles = (t.clone() for t in render(vocoder, mel, torch.tensor([64]), key=KEY, phase=phase))
    start, anchor = 4, 8
    part, _ = render(
        vocoder,
        mel[..., start:],
        torch.tensor([64 - start]),
        key=KEY,
        phase=phase,
        first_frame=torch.tensor([start]),
        cycles=cycles[..., start + anchor - 1 : start + anchor],
        anchor=torch.tensor([anchor]),
    )
    reach = 30  # frames: the receptive field of the layers, and of f0 before them
    torch.testing.assert_close(part[:, 480 * reach :], whole[:, 480 * (start + reach) :], rtol=0, atol=1e-5)


def test_the_host_reads_nothing(hift: Hift) -> None:
    vocoder = BucketedVocoder(hift, batches=(1,), frames=(6,))
    ends, zero = torch.tensor([5]), torch.zeros(1, dtype=torch.int64)
    mel, phase, source = mel_of(6), phase_of(1), torch.zeros(1, 1, 480 * 6, dtype=torch.float64)
    with torch.no_grad(), HostWatch() as watch:
        vocoder.render(mel, ends, KEY, zero, phase, torch.zeros_like(phase).double(), zero)
    assert not watch.found
    with torch.no_grad(), HostWatch() as watch:
        hift(mel, source)
    assert watch.found, "the reference reads on the host; if it no longer does, this watch finds nothing"


def test_more_frames_than_the_largest_bucket_are_refused(hift: Hift) -> None:
    vocoder = BucketedVocoder(hift, batches=(1,), frames=(6,))
    with pytest.raises(ConfigError, match="more mel frames"):
        render(vocoder, mel_of(7), torch.tensor([7]), key=KEY, phase=phase_of(1))


@pytest.mark.requires_cuda
def test_the_graph_gives_the_samples_of_the_reference(hift: Hift) -> None:
    mel, phase = mel_of(7), phase_of(3)
    expected = reference(hift, mel, phase)
    vocoder = BucketedVocoder(hift.cuda(), batches=(1,), frames=(12,))
    for _ in range(2):
        samples, _ = render(vocoder, mel.cuda(), torch.tensor([7]).cuda(), key=KEY.cuda(), phase=phase.cuda())
    torch.testing.assert_close(samples.cpu(), expected, rtol=0, atol=1e-6)
    assert [graph.mode for graph in vocoder._graphs.values()] == ["graph"]


@pytest.mark.requires_cuda
@pytest.mark.parametrize(("batch", "frames"), [(1, 32), (1, 57), (1, 169), (4, 32), (4, 105)])
def test_a_graph_of_full_size_gives_the_same_bits_each_time(batch: int, frames: int) -> None:
    """cuDNN may sum transposed convolutions in any order unless it is restricted."""
    torch.manual_seed(0)
    vocoder = BucketedVocoder(Hift(HiftConfig()).eval().cuda(), batches=(batch,), frames=(frames,))
    ends, key = torch.full((batch,), frames).cuda(), torch.arange(batch).cuda()
    given = {"key": key, "phase": torch.zeros(batch, HARMONICS, 1).cuda()}
    mel = torch.randn(batch, 80, frames).cuda()
    first = render(vocoder, mel, ends, **given)[0].clone()
    for _ in range(20):
        assert torch.equal(render(vocoder, mel, ends, **given)[0], first)
