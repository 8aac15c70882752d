"""Joining overlapping renderings: every sample once, crossfaded where renderings overlap."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nightingale.audio.crossfade import CROSSFADE_SAMPLES, HOLD_FRAMES, Crossfade, apply_fade_in, fade_in
from nightingale.types import Samples

FRAME = 480
HOLD = HOLD_FRAMES * FRAME


def past_the_fade(crossfade: Crossfade) -> Crossfade:
    """Emit the faded 40 ms, with nothing provisional after them."""
    crossfade.join(np.zeros(960, np.float32), start=0, end=960)
    return crossfade


def constant(value: float, samples: int) -> Samples:
    return np.full(samples, value, np.float32)


def test_equal_renderings_in_any_blocks_equal_the_whole() -> None:
    whole = np.sin(np.arange(40 * FRAME) / 17).astype(np.float32)
    expected = apply_fade_in(whole.copy(), 0)
    for block in (3, 5, 16):
        crossfade, parts = Crossfade(), []
        for known in range(block, 40 + block, block):
            known = min(known, 40)
            end = crossfade.end(known * FRAME, final=known == 40)
            start = crossfade.emitted_samples
            parts.append(crossfade.join(whole[start : known * FRAME].copy(), start=start, end=end))
        assert crossfade.emitted_samples == len(whole)
        np.testing.assert_allclose(np.concatenate(parts), expected, rtol=0, atol=1e-6)


def test_the_end_is_held_back_until_the_final_rendering() -> None:
    crossfade = Crossfade()
    assert crossfade.end(10 * FRAME, final=False) == 10 * FRAME - HOLD
    assert crossfade.end(10 * FRAME, final=True) == 10 * FRAME
    assert crossfade.end(FRAME, final=False) == 0
    crossfade.join(constant(1, 10 * FRAME), start=0, end=9 * FRAME)
    assert crossfade.end(10 * FRAME, final=False) == 9 * FRAME  # never before what was emitted


def test_overlapping_samples_change_linearly_from_one_rendering_to_the_next() -> None:
    crossfade = past_the_fade(Crossfade())
    first = crossfade.join(constant(1, 2000), start=960, end=1960)
    second = crossfade.join(constant(2, 2000), start=1960, end=2960)
    assert first.tolist() == [1.0] * 1000
    rise = np.arange(1, CROSSFADE_SAMPLES + 1) / (CROSSFADE_SAMPLES + 1)
    np.testing.assert_allclose(second[:CROSSFADE_SAMPLES], 1 + rise, rtol=0, atol=1e-6)
    assert second[CROSSFADE_SAMPLES:].tolist() == [2.0] * (1000 - CROSSFADE_SAMPLES)


def test_samples_before_the_last_emitted_one_are_dropped() -> None:
    crossfade = past_the_fade(Crossfade())
    assert crossfade.join(np.arange(0, 2000, dtype=np.float32), start=0, end=1000).tolist() == list(
        range(960, 1000)
    )


def test_the_crossfade_is_not_longer_than_the_hold() -> None:
    crossfade = past_the_fade(Crossfade(hold_frames=0))
    crossfade.join(constant(1, 2000), start=960, end=1960)
    assert crossfade.join(constant(2, 10), start=1960, end=1970).tolist() == [2.0] * 10


def test_the_fade_in_equals_upstreams() -> None:
    fade = fade_in()
    ramp = [(math.cos(math.pi - math.pi * i / 479) + 1) / 2 for i in range(480)]
    assert fade.dtype == np.float32
    assert fade[:480].tolist() == [0.0] * 480
    assert fade[480:] == pytest.approx(ramp, abs=1e-6)
    assert (fade[600], fade[720], fade[959]) == pytest.approx((0.147027, 0.501640, 1.0), abs=1e-5)


def test_the_fade_in_continues_across_blocks() -> None:
    samples = np.concatenate([apply_fade_in(constant(1, 700), 0), apply_fade_in(constant(1, 700), 700)])
    assert np.array_equal(samples[:960], fade_in())
    assert samples[960:].tolist() == [1.0] * 440
