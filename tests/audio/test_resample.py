"""Both resamplers equal upstream's."""

from __future__ import annotations

import numpy as np
import pytest

from nightingale.audio.resample import resample, resample_sinc

AT = [0, 1, 3000, 4001, 6002, -1]


@pytest.mark.parametrize(
    ("seconds", "from_hz", "to_hz", "length", "golden"),
    [
        (
            0.5,
            44_100,
            24_000,
            12_001,
            [2.946293e-4, 4.012758e-4, -4.512381e-4, -2.720498e-4, -1.015497e-5, 0.0],
        ),
        (
            1.0,
            24_000,
            16_000,
            16_000,
            [-4.664784e-5, 9.015082e-4, -7.900016e-7, -1.283179e-4, 0.07221007, 2.528208e-4],
        ),
        (
            1.0,
            8_000,
            24_000,
            24_000,
            [-4.815677e-4, -4.252808e-5, -5.006003e-4, -5.133833e-4, -1.056251e-3, -2.566123e-5],
        ),
    ],
)
def test_soxr_equals_librosa(clip, seconds, from_hz, to_hz, length, golden):
    out = resample(clip(seconds, from_hz), from_hz, to_hz)
    assert out.dtype == np.float32
    assert len(out) == length
    assert np.abs(out[AT] - golden).max() < 2e-6


def test_length_is_the_rounded_ratio_times_the_length():
    # 22050 · 24000/44100 is exactly 12000, but the rounded ratio makes it slightly more: a zero is added.
    assert len(resample(np.zeros(22_050, dtype=np.float32), 44_100, 24_000)) == 12_001


@pytest.mark.parametrize(
    ("seconds", "from_hz", "length", "at", "golden"),
    [
        (
            1.0,
            24_000,
            16_000,
            [0, 1, 5000, 8001, 8002, 15_999],
            [1.207478e-5, 8.525215e-4, -0.1429494, 1.229538e-4, 1.462888e-3, 2.225851e-4],
        ),
        (
            0.5,
            44_100,
            8_000,
            AT,
            [3.833827e-4, -5.056542e-4, -8.344176e-4, 6.721493e-4, 2.425789e-4, 8.146882e-5],
        ),
    ],
)
def test_sinc_equals_torchaudio(clip, seconds, from_hz, length, at, golden):
    out = resample_sinc(clip(seconds, from_hz), from_hz, 16_000)
    assert out.dtype == np.float32
    assert len(out) == length
    assert np.abs(out[at] - golden).max() < 1e-6


@pytest.mark.parametrize("convert", [resample, resample_sinc])
def test_the_same_rate_changes_nothing(clip, convert):
    wav = clip(0.5, 16_000)
    assert np.array_equal(convert(wav, 16_000, 16_000), wav)


@pytest.mark.parametrize("convert", [resample, resample_sinc])
@pytest.mark.parametrize("samples", [0, 1, 2, 7])
def test_tiny_clips_have_the_right_length(convert, samples):
    assert len(convert(np.ones(samples, dtype=np.float32), 24_000, 16_000)) == -(-samples * 2 // 3)


@pytest.mark.parametrize("convert", [resample, resample_sinc])
def test_a_tone_keeps_its_pitch_and_level(convert):
    t = np.arange(24_000) / 24_000
    out = convert(np.sin(2 * np.pi * 1000 * t).astype(np.float32), 24_000, 16_000)
    want = np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000)
    assert np.abs(out - want)[200:-200].max() < 2e-3
