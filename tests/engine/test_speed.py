"""Another speed at the same pitch: how long, how high, how smooth, and in pieces as in one."""

from __future__ import annotations

import time
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from nightingale_lab.bench.pitch import pitch_of
from nightingale.engine.rendering.time_stretch import Stretcher
from nightingale.errors import ConfigError
from nightingale.types import Samples

RATE_HZ = 24_000
SPEEDS = (0.25, 0.5, 0.75, 0.9, 1.1, 1.37, 2.0, 3.0)
HURRIED = (3.6, 3.8, 4.0)
"""Where a window is settled about when the end is: too fast to be called speech."""


def voice(seconds: float, pitch_hz: float) -> Samples:
    """A vowel with vibrato that swells and fades, over a little breath."""
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    phase = 2 * np.pi * np.cumsum(pitch_hz * (1 + 0.03 * np.sin(10 * np.pi * t))) / RATE_HZ
    wave = sum(np.sin(k * phase) / k for k in range(1, 20)) * (0.5 + 0.5 * np.sin(4 * np.pi * t) ** 2)
    breath = np.random.default_rng(1).normal(size=len(t))
    return (0.1 * wave + 0.001 * breath).astype(np.float32)


def stretched(samples: Samples, speed: float, cuts: list[int] | None = None) -> Samples:
    stretcher = Stretcher(RATE_HZ, speed)
    chunks = np.split(samples, cuts or [])
    last = len(chunks) - 1
    return np.concatenate([stretcher.push(c, final=n == last) for n, c in enumerate(chunks)])


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("pitch_hz", [75, 120, 210, 330])
def test_the_pitch_stays_and_the_length_is_as_asked(pitch_hz: float, speed: float) -> None:
    said = voice(2.0, pitch_hz)
    heard = stretched(said, speed)
    assert len(heard) == round(len(said) / speed)
    before, after = pitch_of(said, RATE_HZ), pitch_of(heard, RATE_HZ)
    assert after.median_hz == pytest.approx(before.median_hz, rel=0.01)
    assert after.voiced_share > 0.99
    assert np.sqrt(np.mean(heard**2)) == pytest.approx(np.sqrt(np.mean(said**2)), rel=0.03)


@pytest.mark.parametrize("speed", SPEEDS)
def test_there_is_no_click(speed: float) -> None:
    said = voice(2.0, 120)
    assert np.abs(np.diff(stretched(said, speed))).max() < 1.02 * np.abs(np.diff(said)).max()


def test_windows_laid_down_unaligned_would_be_heard() -> None:
    """The two checks above can fail: without the search for likeness, both the level and the pitch suffer."""
    said = voice(2.0, 120)
    deaf = Stretcher(RATE_HZ, 0.75)
    deaf._best = deaf._place  # type: ignore[method-assign]
    heard = deaf.push(said, final=True)
    assert np.sqrt(np.mean(heard**2)) < 0.9 * np.sqrt(np.mean(said**2))


@pytest.mark.parametrize("speed", [0.25, 0.83, 1.0, 1.25, 4.0])
@pytest.mark.parametrize("size", [1, 77, 480, 960, 5000, 23_999])
def test_pieces_equal_one(speed: float, size: int) -> None:
    said = voice(0.05 if size == 1 else 1.0, 140)
    cuts = list(range(size, len(said), size))
    assert np.array_equal(stretched(said, speed, cuts), stretched(said, speed))


@pytest.mark.parametrize("speed", HURRIED)
def test_nothing_is_given_out_that_lies_beyond_the_end(speed: float) -> None:
    said = voice(1.2, 140)
    for count in range(24_000, 28_000, 37):
        whole = stretched(said[:count], speed)
        assert len(whole) == round(count / speed)
        assert np.array_equal(stretched(said[:count], speed, list(range(960, count, 960))), whole)


@pytest.mark.parametrize("speed", SPEEDS)
def test_more_future_never_changes_the_past(speed: float) -> None:
    said = voice(1.0, 140)
    early = Stretcher(RATE_HZ, speed).push(said[:12_000])
    assert 0 < len(early) < 12_000 / speed
    assert np.array_equal(early, stretched(said, speed)[: len(early)])


@pytest.mark.parametrize("speed", SPEEDS)
def test_little_is_held_back_and_little_is_remembered(speed: float) -> None:
    stretcher = Stretcher(RATE_HZ, speed)
    given = 0
    said = voice(0.04, 140)
    for number in range(1, 200):
        given += len(stretcher.push(said))
        assert number * 960 / speed - given < 0.08 * RATE_HZ / speed
        assert len(stretcher._heard) < 0.1 * RATE_HZ


def test_at_its_own_speed_every_bit_stays() -> None:
    said = voice(0.1, 140)
    assert np.array_equal(stretched(said, 1.0, [7, 900]), said)
    assert np.array_equal(stretched(said, 1, [7, 900]), said)


@pytest.mark.parametrize("count", [0, 1, 2, 100, 359, 360, 361, 1000])
@pytest.mark.parametrize("speed", [0.5, 1.0, 1.3, 2.0])
def test_very_little_can_be_stretched_too(count: int, speed: float) -> None:
    heard = stretched(np.full(count, 0.5, np.float32), speed)
    assert heard.dtype == np.float32
    assert len(heard) == round(count / speed)
    assert np.isfinite(heard).all()


def test_silence_stays_silence_and_what_begins_after_it_begins_once() -> None:
    click = np.zeros(RATE_HZ, np.float32)
    assert not stretched(click, 1.3).any()
    click[12_000:12_010] = 1.0
    loud = np.flatnonzero(np.abs(stretched(click, 1.3)) > 0.3)
    assert len(loud) > 0
    assert loud[-1] - loud[0] < 30
    assert abs(loud[0] - 12_000 / 1.3) < 0.012 * RATE_HZ


@pytest.mark.parametrize("speed", [0.24, 4.01, 0, -1, nan, inf, True, "fast", None])
def test_a_speed_out_of_range_is_refused(speed: Any) -> None:
    with pytest.raises(ConfigError, match=r"from 0\.25 to 4\.0"):
        Stretcher(RATE_HZ, speed)


def test_it_costs_little() -> None:
    said = voice(4.0, 140)
    costs = []
    for _ in range(3):
        start_s = time.process_time()
        stretched(said, 0.9)
        costs.append((time.process_time() - start_s) / 4.0)
    assert min(costs) < 0.03, f"{100 * min(costs):.2f} % of real time"
