"""The pitch of recordings near the teacher's curve."""

from __future__ import annotations

import numpy as np
import torch

from nightingale_lab.train.bank import HOP, UNKNOWN_HZ, AudioBank
from nightingale_lab.train.measured_pitch import measure_pitch

CPU = torch.device("cpu")


def glide(frames: int, start_hz: float, end_hz: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a harmonic tone whose pitch glides, and the pitch at the centre of each frame."""
    hz = np.geomspace(start_hz, end_hz, frames * HOP)
    phase = 2 * np.pi * np.cumsum(hz) / 24_000
    wave = sum(np.sin(k * phase) / k for k in range(1, 12)) * 3000
    return wave.astype(np.int16), hz[HOP // 2 :: HOP]


def test_a_curve_that_is_off_becomes_the_pitch_of_the_audio() -> None:
    wave, true_hz = glide(60, 110.0, 240.0)
    curve = true_hz * np.where(np.arange(60) % 2, 1.06, 0.92)
    found = measure_pitch(AudioBank.join([(wave, curve)]), CPU).f0_hz.astype(np.float64)
    inner = slice(2, -2)  # the windows of the others reach beyond the tone
    assert np.abs(found[inner] / true_hz[inner] - 1).max() < 0.01


def test_noise_has_no_known_pitch_and_frames_without_one_stay_as_they_are() -> None:
    noise = (np.random.default_rng(0).normal(size=40 * HOP) * 2000).astype(np.int16)
    curve = np.where(np.arange(40) < 20, 150.0, np.where(np.arange(40) < 30, 0.0, UNKNOWN_HZ))
    found = measure_pitch(AudioBank.join([(noise, curve)]), CPU).f0_hz
    assert (found[:20] == UNKNOWN_HZ).mean() > 0.9
    assert (found[20:30] == 0).all()
    assert (found[30:] == UNKNOWN_HZ).all()
