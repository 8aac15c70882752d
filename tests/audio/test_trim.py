"""Trimming equals librosa's."""

from __future__ import annotations

import numpy as np
import pytest

from nightingale.audio.reference_check import sound_span


@pytest.mark.parametrize(("seconds", "span"), [(0.02, (0, 320)), (1.0, (4096, 8192)), (2.5, (4096, 32_256))])
def test_span_equals_librosa(clip, seconds, span):
    assert sound_span(clip(seconds, 16_000)) == span


def test_silence_is_kept_whole():
    assert sound_span(np.zeros(5000, dtype=np.float32)) == (0, 5000)


@pytest.mark.parametrize("samples", [0, 1, 511, 512, 513])
def test_clips_of_less_than_two_hops_are_kept_whole(samples):
    assert sound_span(np.ones(samples, dtype=np.float32)) == (0, samples)
