"""The pitch tracker on sounds whose pitch is known."""

from __future__ import annotations

import numpy as np
import pytest

from nightingale.types import Samples
from nightingale_lab.bench.pitch import pitch_of

RATE_HZ = 24_000


def voice(hz: np.ndarray) -> Samples:
    phase = 2 * np.pi * np.cumsum(hz) / RATE_HZ
    return (0.1 * sum(np.sin(k * phase) / k for k in range(1, 10))).astype(np.float32)


@pytest.mark.parametrize("hz", [80.0, 120.0, 210.0, 330.0])
def test_a_steady_voice_has_its_own_pitch_and_no_spread(hz: float) -> None:
    found = pitch_of(voice(np.full(RATE_HZ, hz)), RATE_HZ)
    assert found.median_hz == pytest.approx(hz, rel=0.02)
    assert found.spread_semitones < 0.1
    assert found.voiced_share > 0.95


def test_a_moving_voice_has_more_spread_than_a_flat_one() -> None:
    t = np.arange(2 * RATE_HZ) / RATE_HZ
    found = pitch_of(voice(150.0 * 2 ** (4 / 12 * np.sin(2 * np.pi * 0.7 * t))), RATE_HZ)
    assert 2.3 < found.spread_semitones < 3.3


def test_noise_silence_and_scraps_have_no_pitch() -> None:
    noise = np.random.default_rng(7).normal(0.0, 0.1, RATE_HZ).astype(np.float32)
    assert pitch_of(noise, RATE_HZ).voiced_share < 0.05
    for length in (0, 10, RATE_HZ):
        assert pitch_of(np.zeros(length, dtype=np.float32), RATE_HZ).median_hz == 0.0
