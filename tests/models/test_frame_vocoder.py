"""The vocoder at the rate of frames: blocks equal the whole, its lookahead, its transforms and its excitation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nightingale.models.frame_vocoder.config import (
    BINS,
    BLOCK_TAPS,
    DELAY_SAMPLES,
    FLUSH_FRAMES,
    FRAME_SAMPLES,
    HOP_SAMPLES,
    LOOKAHEAD_FRAMES,
    MARGIN_SAMPLES,
    MAX_HARMONIC_HZ,
    SILENT_LOG_MEL,
    WINDOW_SAMPLES,
    FrameVocoderConfig,
)
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale.models.frame_vocoder.transforms import bands_to_bins
from nightingale.models.layers.streaming_state import SavedState, StreamingState

SMALL = FrameVocoderConfig(width=16, hidden=24, blocks=2, pitch_width=8)
FRAMES = 23
PHASE_TOLERANCE = 2e-3
"""Products of another length are rounded differently, which may change the phase by 2⁻²⁰ of a cycle: at the 100th
harmonic, by 6e-4 of its amplitude. Measured: 5e-4."""
TOLERANCE = 2e-6
"""The same at a pitch that is not rounded differently. Measured: 1e-7."""


@pytest.fixture(scope="module")
def net() -> FrameVocoder:
    return random_vocoder()


def random_vocoder() -> FrameVocoder:
    """Return a network whose samples are about as loud as speech, and whose pitch is between 60 and 300 Hz."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = FrameVocoder(SMALL).eval().requires_grad_(False)
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        made.pitch_predictor.classifier.weight.mul_(200)
        made.pitch_predictor.classifier.bias.fill_(150.0)
    return made


def inputs(rows: int = 2, frames: int = FRAMES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mel = torch.randn(rows, SMALL.mel_bands, frames, generator=generator) - 1.0
    return mel, torch.randn(rows, frames * FRAME_SAMPLES, generator=generator)


def in_blocks(net: FrameVocoder, mel: Tensor, noise: Tensor, frames: int) -> tuple[Tensor, SavedState]:
    state, samples = net.initial_state(len(mel)), []
    blocks = zip(torch.split(mel, frames, 2), torch.split(noise, frames * FRAME_SAMPLES, 1), strict=True)
    for mel_block, noise_block in blocks:
        block, state = net(mel_block, noise_block, state)
        samples.append(block)
    return torch.cat(samples, dim=1), state


@pytest.mark.parametrize("frames", [1, 2, 5, 16])
@pytest.mark.parametrize("is_steady", [True, False])
def test_joined_blocks_equal_the_whole(frames: int, is_steady: bool) -> None:
    net, (mel, noise) = random_vocoder(), inputs()
    if is_steady:
        net.pitch_predictor.classifier.weight.zero_()
        net.pitch_predictor.classifier.bias.fill_(151.3)
    whole, whole_state = net(mel, noise, net.initial_state(2))
    joined, state = in_blocks(net, mel, noise, frames)
    assert whole.shape == (2, FRAMES * FRAME_SAMPLES)
    assert 0.01 < whole.std() < 0.3
    assert (whole - joined).abs().max() < (TOLERANCE if is_steady else PHASE_TOLERANCE)
    if is_steady:
        for before, after in zip(whole_state, state, strict=True):
            torch.testing.assert_close(before, after, atol=1e-5, rtol=1e-5)


def test_rows_are_streams_of_their_own(net: FrameVocoder) -> None:
    mel, noise = inputs()
    both, _ = net(mel, noise, net.initial_state(2))
    alone, _ = net(mel[1:], noise[1:], net.initial_state(1))
    assert (both[1:] - alone).abs().max() < PHASE_TOLERANCE


def test_the_lookahead_is_three_frames_and_the_margin_of_a_window(net: FrameVocoder) -> None:
    assert DELAY_SAMPLES == LOOKAHEAD_FRAMES * FRAME_SAMPLES + MARGIN_SAMPLES
    mel, noise = inputs(rows=1)
    changed = mel.clone()
    rendered = 8
    first_unseen = rendered + LOOKAHEAD_FRAMES + 1
    changed[:, :, first_unseen:] += 1.0
    before, _ = net(mel, noise, net.initial_state(1))
    after, _ = net(changed, noise, net.initial_state(1))
    difference = (before - after)[0, DELAY_SAMPLES:].abs()  # of samples at the places of their mel
    limit = (rendered + 1) * FRAME_SAMPLES - MARGIN_SAMPLES
    assert difference[:limit].max() == 0
    assert difference[limit : limit + HOP_SAMPLES].max() > 1e-4


def test_samples_lie_a_delay_behind_their_mel() -> None:
    plain = random_vocoder()
    plain.head.weight.zero_()
    plain.head.bias.zero_()  # levels are those of the mel
    mel = torch.full((1, SMALL.mel_bands, FRAMES), SILENT_LOG_MEL)
    mel[:, :, 10:14] = 0.0
    samples, _ = plain(mel, inputs(rows=1)[1], plain.initial_state(1))
    energy = samples[0, DELAY_SAMPLES:].square()
    centre = (energy * torch.arange(len(energy))).sum() / energy.sum()
    assert centre / FRAME_SAMPLES == pytest.approx(12.0, abs=0.2)


def test_the_state_has_the_shapes_that_it_names(net: FrameVocoder) -> None:
    mel, noise = inputs(rows=3, frames=2)
    before = net.initial_state(3)
    _, after = net(mel, noise, before)
    wanted = [(3, *shape) for _, shape in net.state_shapes()]
    assert [tuple(tensor.shape) for tensor in before] == wanted
    assert [tuple(tensor.shape) for tensor in after] == wanted
    assert [name for name, _ in net.state_shapes() if name.startswith("block")] == ["block0", "block1"]
    assert dict(net.state_shapes())["block0"] == (BLOCK_TAPS - 1, SMALL.width)


def test_the_pitch_of_a_whole_mel_has_no_delay(net: FrameVocoder) -> None:
    mel, _ = inputs()
    flush = torch.full((2, SMALL.mel_bands, FLUSH_FRAMES), SILENT_LOG_MEL)
    delayed = net.pitch_predictor(torch.cat([mel, flush], dim=2), StreamingState(net.initial_state(2)))
    whole = net.pitch_hz(mel)
    assert whole.std() > 10
    torch.testing.assert_close(whole, delayed[:, LOOKAHEAD_FRAMES : LOOKAHEAD_FRAMES + FRAMES])


@pytest.mark.parametrize("hz", [45.0, 120.3, 410.0])
def test_the_closed_form_is_the_sum_of_the_harmonics(net: FrameVocoder, hz: float) -> None:
    place_s = torch.arange(-MARGIN_SAMPLES, FRAME_SAMPLES) / 24_000
    found = net._harmonics(torch.tensor([[hz]]), torch.tensor([[0.25]]), place_s)[0]
    cycles = 0.25 + hz * place_s.double()
    numbers = torch.arange(1, int(MAX_HARMONIC_HZ / hz) + 1, dtype=torch.float64)
    wanted = torch.cos(2 * math.pi * cycles[:, None] * numbers).sum(1) * net.tone_gain
    torch.testing.assert_close(found.double(), wanted, atol=2e-4, rtol=0)
    assert wanted.abs().max() > 0.1


def test_all_harmonics_are_in_phase_at_the_start_of_a_cycle_and_none_is_unvoiced(net: FrameVocoder) -> None:
    start, place_s = torch.zeros(1, 1), torch.zeros(1)
    count = int(MAX_HARMONIC_HZ / 100.0)
    at_start = net._harmonics(torch.tensor([[100.0]]), start, place_s)
    assert float(at_start) == pytest.approx(count * net.tone_gain)
    assert float(net._harmonics(torch.tensor([[9.0]]), start, place_s)) == 0.0


def test_bands_are_interpolated_to_bins() -> None:
    matrix = torch.from_numpy(bands_to_bins(SMALL.mel_bands))
    assert matrix.shape == (SMALL.mel_bands, BINS)
    torch.testing.assert_close(matrix.sum(0), torch.ones(BINS))
    assert matrix.min() >= 0
    assert (matrix > 0).sum(0).max() == 2
    place = matrix.T @ torch.arange(float(SMALL.mel_bands))  # which band a bin reads
    assert (place.diff() >= 0).all()
    assert (float(place[0]), float(place[-1])) == (0.0, SMALL.mel_bands - 1.0)


def test_the_inverse_transform_gives_the_signal_back(net: FrameVocoder) -> None:
    overlap = WINDOW_SAMPLES - HOP_SAMPLES
    signal = torch.randn(2, overlap + 10 * FRAME_SAMPLES, generator=torch.Generator().manual_seed(2))
    spectra = net._windows(signal)
    wanted = torch.fft.rfft(signal.unfold(1, WINDOW_SAMPLES, HOP_SAMPLES) * torch.hann_window(WINDOW_SAMPLES))
    torch.testing.assert_close(spectra, torch.cat([wanted.real, wanted.imag], dim=-1), atol=1e-4, rtol=1e-4)
    back = net._overlap_add(spectra @ net.synthesis, StreamingState((torch.zeros(2, overlap),)))
    assert back.shape[1] == 10 * FRAME_SAMPLES
    torch.testing.assert_close(back[:, overlap:], signal[:, overlap : back.shape[1]], atol=1e-5, rtol=1e-5)


def test_silence_gives_near_silence(net: FrameVocoder) -> None:
    mel, noise = inputs()
    samples, _ = net(torch.full_like(mel, SILENT_LOG_MEL), noise, net.initial_state(2))
    assert 0 < samples.abs().max() < 1e-4
