"""Trimming keeps what librosa keeps, and its torch twin agrees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nightingale.audio.trim import sound_span, trim_silence
from nightingale.models.layers import stft


@pytest.mark.parametrize(("seconds", "span"), [(0.02, (0, 320)), (1.0, (4096, 8192)), (2.5, (4096, 32_256))])
def test_span_equals_librosa(clip, seconds, span):
    assert sound_span(clip(seconds, 16_000)) == span


def test_silence_is_kept_whole():
    assert sound_span(np.zeros(5000, dtype=np.float32)) == (0, 5000)


@pytest.mark.parametrize("seconds", [0.02, 0.3, 1.0, 2.5])
def test_the_torch_twin_cuts_at_the_same_samples(clip, seconds):
    for gain in (1.0, 1e-7):
        wav = clip(seconds, 16_000) * np.float32(gain)
        assert np.array_equal(stft.trim_silence(torch.from_numpy(wav)).numpy(), trim_silence(wav))


@pytest.mark.parametrize("samples", [0, 1, 511, 512, 513])
def test_scraps_do_not_break_it(samples):
    assert len(trim_silence(np.ones(samples, dtype=np.float32))) == samples
