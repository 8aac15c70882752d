"""Time stretching: length, pitch, level, smoothness, and the same output for any chunking."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest
from cpu_time import cpu_seconds

from nightingale.engine.rendering.time_stretch import TimeStretcher
from nightingale.errors import ConfigError
from nightingale.types import Samples
from nightingale_lab.bench.pitch import pitch_of

RATE_HZ = 24_000
SPEEDS = (0.25, 0.5, 0.75, 0.9, 1.1, 1.37, 2.0, 3.0)
FASTEST = (3.6, 3.8, 4.0)
"""Speeds at which a window is ready only about when the end of the input is known."""


def voice(seconds: float, pitch_hz: float) -> Samples:
    """Return a vowel with vibrato and a changing level, over a little noise."""
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    phase = 2 * np.pi * np.cumsum(pitch_hz * (1 + 0.03 * np.sin(10 * np.pi * t))) / RATE_HZ
    wave = sum(np.sin(k * phase) / k for k in range(1, 20)) * (0.5 + 0.5 * np.sin(4 * np.pi * t) ** 2)
    noise = np.random.default_rng(1).normal(size=len(t))
    return (0.1 * wave + 0.001 * noise).astype(np.float32)


def stretch(samples: Samples, speed: float, cuts: list[int] | None = None) -> Samples:
    stretcher = TimeStretcher(RATE_HZ, speed)
    chunks = np.split(samples, cuts or [])
    last = len(chunks) - 1
    return np.concatenate([stretcher.push(c, final=n == last) for n, c in enumerate(chunks)])


def rms(samples: Samples) -> float:
    return float(np.sqrt(np.mean(samples**2)))


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("pitch_hz", [75, 120, 210, 330])
def test_pitch_and_level_stay_and_the_length_is_exact(pitch_hz: float, speed: float) -> None:
    original = voice(2.0, pitch_hz)
    stretched = stretch(original, speed)
    assert len(stretched) == round(len(original) / speed)
    before, after = pitch_of(original, RATE_HZ), pitch_of(stretched, RATE_HZ)
    assert after.median_hz == pytest.approx(before.median_hz, rel=0.01)
    assert after.voiced_share > 0.99
    assert rms(stretched) == pytest.approx(rms(original), rel=0.03)


@pytest.mark.parametrize("speed", SPEEDS)
def test_there_is_no_click(speed: float) -> None:
    original = voice(2.0, 120)
    assert np.abs(np.diff(stretch(original, speed))).max() < 1.02 * np.abs(np.diff(original)).max()


def test_the_level_drops_without_the_similarity_search() -> None:
    """The level check above can fail: it fails if windows are added up at their nominal positions."""
    original = voice(2.0, 120)
    stretcher = TimeStretcher(RATE_HZ, 0.75)
    stretcher._best_start = stretcher._nominal  # type: ignore[method-assign]
    assert rms(stretcher.push(original, final=True)) < 0.9 * rms(original)


@pytest.mark.parametrize("speed", [0.25, 0.83, 1.0, 1.25, 4.0])
@pytest.mark.parametrize("size", [1, 77, 480, 960, 5000, 23_999])
def test_the_output_does_not_depend_on_the_chunks(speed: float, size: int) -> None:
    original = voice(0.05 if size == 1 else 1.0, 140)
    cuts = list(range(size, len(original), size))
    assert np.array_equal(stretch(original, speed, cuts), stretch(original, speed))


@pytest.mark.parametrize("speed", FASTEST)
def test_no_output_exceeds_the_final_length(speed: float) -> None:
    original = voice(1.2, 140)
    for count in range(24_000, 28_000, 37):
        whole = stretch(original[:count], speed)
        assert len(whole) == round(count / speed)
        assert np.array_equal(stretch(original[:count], speed, list(range(960, count, 960))), whole)


@pytest.mark.parametrize("speed", SPEEDS)
def test_later_input_never_changes_earlier_output(speed: float) -> None:
    original = voice(1.0, 140)
    early = TimeStretcher(RATE_HZ, speed).push(original[:12_000])
    assert 0 < len(early) < 12_000 / speed
    assert np.array_equal(early, stretch(original, speed)[: len(early)])


@pytest.mark.parametrize("speed", SPEEDS)
def test_latency_and_memory_are_bounded(speed: float) -> None:
    stretcher = TimeStretcher(RATE_HZ, speed)
    output = 0
    original = voice(0.04, 140)
    for number in range(1, 200):
        output += len(stretcher.push(original))
        assert number * 960 / speed - output < 0.08 * RATE_HZ / speed
        assert len(stretcher._input) < 0.1 * RATE_HZ


def test_speed_1_changes_nothing() -> None:
    original = voice(0.1, 140)
    assert np.array_equal(stretch(original, 1.0, [7, 900]), original)
    assert np.array_equal(stretch(original, 1, [7, 900]), original)


@pytest.mark.parametrize("count", [0, 1, 2, 100, 359, 360, 361, 1000])
@pytest.mark.parametrize("speed", [0.5, 1.0, 1.3, 2.0])
def test_very_short_input_is_stretched(count: int, speed: float) -> None:
    stretched = stretch(np.full(count, 0.5, np.float32), speed)
    assert stretched.dtype == np.float32
    assert len(stretched) == round(count / speed)
    assert np.isfinite(stretched).all()


def test_silence_stays_silent_and_a_click_after_it_occurs_once() -> None:
    click = np.zeros(RATE_HZ, np.float32)
    assert not stretch(click, 1.3).any()
    click[12_000:12_010] = 1.0
    loud = np.flatnonzero(np.abs(stretch(click, 1.3)) > 0.3)
    assert len(loud) > 0
    assert loud[-1] - loud[0] < 30
    assert abs(loud[0] - 12_000 / 1.3) < 0.012 * RATE_HZ


@pytest.mark.parametrize("speed", [0.24, 4.01, 0, -1, nan, inf, True, "fast", None])
def test_a_speed_out_of_range_is_refused(speed: Any) -> None:
    with pytest.raises(ConfigError, match=r"speed is out of range.*from 0\.25 to 4\.0"):
        TimeStretcher(RATE_HZ, speed)


def test_stretching_takes_a_small_share_of_real_time() -> None:
    original = voice(4.0, 140)
    share = cpu_seconds(lambda: stretch(original, 0.9), rounds=3) / 4.0
    assert share < 0.1, f"{100 * share:.2f} % of real time"
