"""A sample that a stream lost is found wherever it was, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from tiny_wren import TINY_VOCODER

from nightingale.backends.torch.sample_stream import open_sample_stream, render_samples
from nightingale.models.chatterbox.build import Vocoder, new_vocoder
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.types import Samples
from nightingale_lab.bench.seams import seam_report
from nightingale_lab.bench.shifts import shift_report
from nightingale_lab.bench.voicelike import voicelike

RATE_HZ = 24_000
FRAMES = 100
CHUNK_FRAMES = (1, 2, 3, 5, 8, 16, 25, 50, 64, 99)
RAMPS = {
    **{f"all of {size}": (size,) * (FRAMES // size) for size in CHUNK_FRAMES},
    "doubling": (8, 16, 32, 64),
    "uneven": (3, 25, 1, 50, 16, 7),
}


@cache
def vocoder(*, causal: bool) -> Vocoder:
    """Return a narrow network with random weights and a pitch: the frame-rate vocoder, or HiFT."""
    hift = HiftConfig(base_channels=16, resblock_kernels=(3,), source_kernels=(3, 3, 3), f0_channels=8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        net = new_vocoder(TINY_VOCODER if causal else hift)
    predictor = net.f0_predictor if isinstance(net, Hift) else net.pitch_predictor
    predictor.classifier.bias.data.fill_(140.0)
    return net.eval().requires_grad_(False)


@cache
def whole_of(*, causal: bool) -> Samples:
    return render_samples(vocoder(causal=causal), mel(), seed=3)


@cache
def mel() -> torch.Tensor:
    coarse = torch.randn(1, 80, 12, generator=torch.Generator().manual_seed(4))
    return torch.nn.functional.interpolate(coarse, size=FRAMES, mode="linear")[0]


@cache
def streamed(ramp: tuple[int, ...], *, causal: bool) -> list[Samples]:
    """Return the chunks of a stream for pushes of these frames and a last one with the rest."""
    stream = open_sample_stream(vocoder(causal=causal), seed=3, streaming=True)
    ends = [*(end for end in accumulate(ramp) if end < FRAMES), FRAMES]
    pieces = [stream.push(mel()[:, a:b], final=b == FRAMES) for a, b in pairwise([0, *ends])]
    return [piece for piece in pieces if len(piece)]


def starts_of(pieces: list[Samples]) -> list[int]:
    return list(accumulate(len(piece) for piece in pieces[:-1]))


@pytest.mark.parametrize("causal", [True, False], ids=["frame-rate", "HiFT"])
@pytest.mark.parametrize("ramp", RAMPS.values(), ids=RAMPS)
def test_a_stream_is_clean_for_ramps_of_every_size(ramp: tuple[int, ...], causal: bool) -> None:
    pieces = streamed(ramp, causal=causal)
    samples = np.concatenate(pieces)
    assert shift_report(samples, starts_of(pieces), whole_of(causal=causal)).clean
    assert seam_report(samples, starts_of(pieces), RATE_HZ).clean


@pytest.mark.parametrize("causal", [True, False], ids=["frame-rate", "HiFT"])
@pytest.mark.parametrize("ramp", RAMPS.values(), ids=RAMPS)
def test_one_sample_lost_at_any_boundary_of_a_stream_is_found_there(
    ramp: tuple[int, ...], causal: bool
) -> None:
    pieces = streamed(ramp, causal=causal)
    starts = starts_of(pieces)
    for lost in {0, len(starts) // 2, len(starts) - 1}:
        kept = [*pieces[: lost + 1], pieces[lost + 1][1:], *pieces[lost + 2 :]]
        report = shift_report(np.concatenate(kept), starts_of(kept), whole_of(causal=causal))
        assert report.missing == 1
        assert report.slips == (starts[lost],)


Fault = Callable[[Samples, int], Samples]
FAULTS: dict[str, tuple[Fault, int]] = {
    "one lost": (lambda x, at: np.delete(x, at), 1),
    "one doubled": (lambda x, at: np.insert(x, at, x[at - 1]), -1),
    "ten lost": (lambda x, at: np.delete(x, slice(at, at + 10)), 10),
    "a gap of 10 ms": (lambda x, at: np.insert(x, at, np.zeros(240, np.float32)), -240),
    "10 ms cut out": (lambda x, at: np.delete(x, slice(at, at + 240)), 240),
}


@pytest.mark.parametrize(("fault", "missing"), FAULTS.values(), ids=FAULTS)
def test_what_was_planted_anywhere_in_a_voice_is_found(fault: Fault, missing: int) -> None:
    """At fifty places, smooth and rough, loud and soft; those where the blind check sees nothing too."""
    x = voicelike()
    for at in np.random.default_rng(1).integers(4800, len(x) - 4800, 50):
        report = shift_report(fault(x, int(at)), [int(at)], x)
        assert report.missing == missing
        if missing == -240:  # the gap itself is the beginning of its chunk
            assert not report.clean
        else:
            assert report.slips == (at,), f"planted at {at}"
            assert report.shifts == (0, missing)


def test_a_sample_lost_and_one_doubled_do_not_make_up_for_each_other() -> None:
    x = voicelike()
    faulty = np.insert(np.delete(x, 30_000), 40_000, x[40_000])
    report = shift_report(faulty, [30_000, 40_000], x)
    assert report.missing == 0
    assert report.shifts == (0, 1, 0)
    assert not report.clean


def test_a_faint_error_is_no_shift_and_a_sample_lost_beneath_it_is() -> None:
    x = voicelike()
    noise = 0.03 * x.std() * np.random.default_rng(2).standard_normal(len(x)).astype(np.float32)  # -30 dB
    starts = list(range(2400, len(x), 2400))
    assert shift_report(x + noise, starts, x).clean
    lost = np.delete(x + noise, 24_000)
    assert shift_report(lost, [n - (n > 24_000) for n in starts], x).slips == (24_000,)


def test_silence_tells_nothing_and_a_pure_tone_is_not_taken_for_its_next_period() -> None:
    quiet = np.zeros(RATE_HZ, np.float32)
    assert shift_report(quiet, [12_000], quiet).shifts == (None, None)
    assert shift_report(quiet[:-1], [12_000], quiet).missing == 1
    tone = np.sin(2 * np.pi * np.arange(RATE_HZ) / 100).astype(np.float32)
    assert shift_report(tone, list(range(480, RATE_HZ, 480)), tone).clean
    assert shift_report(np.zeros(0, np.float32), [], np.zeros(0, np.float32)).clean
