"""Loudness equals pyloudnorm's, and normalization reaches the target."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cpu_time import cpu_seconds

from nightingale.audio.loudness import integrated_loudness, normalize_loudness


@pytest.mark.parametrize(
    ("seconds", "gain", "rate_hz", "lufs"),
    [
        (6.3, 1.0, 24_000, -21.386434678725497),
        (3.07, 0.01, 24_000, -61.51258755584374),
        (2.0, 1.0, 44_100, -23.091930603918673),
        (0.43, 1.0, 24_000, -58.338257673354384),
    ],
)
def test_loudness_equals_pyloudnorm(clip, seconds, gain, rate_hz, lufs):
    wav = clip(seconds, rate_hz) * np.float32(gain)
    assert integrated_loudness(wav, rate_hz) == pytest.approx(lufs, abs=1e-5)


def test_normalization_reaches_the_target(clip):
    out = normalize_loudness(clip(3.0, 24_000), 24_000, -27.0)
    assert out.dtype == np.float32
    assert integrated_loudness(out, 24_000) == pytest.approx(-27.0, abs=1e-3)


@pytest.mark.parametrize("samples", [0, 100, 24_000])
def test_silence_and_scraps_come_back_as_they_are(samples):
    wav = np.zeros(samples, dtype=np.float32)
    assert integrated_loudness(wav, 24_000) == -math.inf
    assert np.array_equal(normalize_loudness(wav, 24_000, -27.0), wav)


def test_a_clip_of_many_stretches_is_as_loud_as_one_of_its_periods():
    # 48 s cross the stretch boundaries of the filter several times; a seam would be a click.
    t = np.arange(48 * 24_000) / 24_000
    tone = (0.1 * np.sin(2 * np.pi * 440 * t)).astype(np.float32)
    whole, part = integrated_loudness(tone, 24_000), integrated_loudness(tone[: 4 * 24_000], 24_000)
    assert whole == pytest.approx(part, abs=2e-3)


def test_ten_seconds_are_measured_in_well_under_a_second(clip):
    wav = clip(10.0, 24_000)
    assert cpu_seconds(lambda: integrated_loudness(wav, 24_000), rounds=3) < 0.3
