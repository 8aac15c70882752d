"""Seams are found where they were planted and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import accumulate

import numpy as np
import pytest
import torch

from nightingale.types import Samples
from nightingale_lab.bench.seams import Measure, seam_report
from nightingale_lab.bench.voicelike import voicelike

RATE_HZ = 24_000
SECONDS = 3
RAMPS = {
    "frames": [1] * 149,
    "tokens": [2] * 74,
    "doubling": [12, 24, 48, 50],
    "even": [25] * 5,
    "uneven": [3, 25, 1, 50, 16, 7],
    "one": [60],
}


@cache
def voice(seed: int = 0) -> Samples:
    return voicelike(seconds=SECONDS, seed=seed)


@pytest.fixture(scope="module")
def vocoded() -> Samples:
    """A stand-in vocoder's voice: a random network, but one that hears pitch and is fed something smooth."""
    from nightingale.backends.torch.sample_stream import render_samples
    from nightingale.models.chatterbox.hift.config import HiftConfig
    from nightingale.models.chatterbox.hift.generator import Hift

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        net = Hift(
            HiftConfig(base_channels=16, resblock_kernels=(3,), source_kernels=(3, 3, 3), f0_channels=8)
        )
        mel = torch.nn.functional.interpolate(torch.randn(1, 80, 12), size=150, mode="linear")[0]
    net.f0_predictor.classifier.bias.data.fill_(140.0)
    return render_samples(net.eval().requires_grad_(False), mel, seed=0)


def boundaries(ramp: list[int]) -> list[int]:
    return [480 * frames for frames in accumulate(ramp)]


def dropped(x: Samples, at: int) -> Samples:
    return np.delete(x, at)


def doubled(x: Samples, at: int) -> Samples:
    return np.insert(x, at, x[at - 1])


def gap_put_in(x: Samples, at: int) -> Samples:
    return np.insert(x, at, np.zeros(RATE_HZ // 100, np.float32))


def gap_cut_out(x: Samples, at: int) -> Samples:
    x = x.copy()
    x[at : at + RATE_HZ // 100] = 0
    return x


Fault = Callable[[Samples, int], Samples]


@cache
def slopes() -> tuple[int, ...]:
    """Places where the voice changes fast, so that a sample lost is something lost."""
    steps = np.abs(np.diff(voice(), prepend=0))
    return tuple(
        start + int(steps[start : start + 480].argmax()) + 2 for start in (19_000, 30_000, 41_000, 62_000)
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("ramp", RAMPS.values(), ids=RAMPS)
def test_a_stream_without_faults_is_clean_for_every_ramp(ramp: list[int], seed: int) -> None:
    report = seam_report(voice(seed), boundaries(ramp), RATE_HZ)
    assert report.clean, report


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("fault", [dropped, doubled, gap_put_in, gap_cut_out])
def test_one_planted_fault_is_found_where_it_is(fault: Fault, which: int) -> None:
    at = slopes()[which]
    grown = len(fault(voice(), at)) - len(voice())
    places = [n if n <= at else n + grown for n in slopes()]
    report = seam_report(fault(voice(), at), places, RATE_HZ)
    assert report.seams == (at,)
    assert not report.clean


@pytest.mark.parametrize("which", range(4))
def test_a_lost_sample_is_a_slip_and_not_a_large_step(which: int) -> None:
    """Neither the step nor the spectrum detects it."""
    at = slopes()[which]
    report = seam_report(dropped(voice(), at), [at], RATE_HZ)
    assert report.slip.worst > report.slip.limit
    assert report.step.worst < report.step.limit
    assert report.flux.worst < report.flux.limit


def test_a_gap_is_a_hole() -> None:
    report = seam_report(gap_put_in(voice(), slopes()[0]), [slopes()[0]], RATE_HZ)
    assert report.hole.worst > 2 * report.hole.limit
    assert report.flux.worst > report.flux.inside_p99


def test_a_small_fault_at_every_boundary_is_too_many() -> None:
    """A step of 1 % of full scale, hardly more than the voice's own; but the voice does it seldom."""
    x, places = voice().copy(), boundaries(RAMPS["even"])
    for sign, at in enumerate(places):
        x[at:] += 0.01 * (-1) ** sign
    report = seam_report(x, places, RATE_HZ)
    assert not report.clean


def test_the_chance_of_chance() -> None:
    def measure(above: int, of: int) -> Measure:
        return Measure(inside_p99=1.0, limit=9.0, at_boundaries=(2.0,) * above + (0.5,) * (of - above))

    assert not measure(1, 10).too_often
    assert not measure(2, 100).too_often
    assert measure(4, 20).too_often
    assert measure(12, 200).too_often
    assert not measure(5, 200).too_often
    assert not measure(0, 0).too_often
    assert not measure(1010, 100_000).too_often
    assert measure(2000, 100_000).too_often


def test_the_vocoders_own_samples_are_clean_and_its_faults_are_found(vocoded: Samples) -> None:
    places = [480 * frames for frames in (30, 61, 75, 99, 120)]
    assert seam_report(vocoded, places, RATE_HZ).clean
    at = places[2]
    for fault in (dropped, gap_put_in, gap_cut_out):
        grown = len(fault(vocoded, at)) - len(vocoded)
        moved = [n if n <= at else n + grown for n in places]
        assert seam_report(fault(vocoded, at), moved, RATE_HZ).seams == (at,), fault.__name__


def test_silence_and_snippets_are_clean() -> None:
    for x in (np.zeros(RATE_HZ, np.float32), voice()[:700], np.zeros(0, np.float32)):
        report = seam_report(x, [len(x) // 2], RATE_HZ)
        assert report.clean


def test_a_boundary_at_the_very_edge_is_not_judged() -> None:
    report = seam_report(voice(), [5, 48_000, SECONDS * RATE_HZ - 5], RATE_HZ)
    assert report.boundaries == (48_000,)
