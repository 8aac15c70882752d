"""The check of reference clips: accepted, accepted with a warning, or refused with a reason."""

from __future__ import annotations

import numpy as np
import pytest

from nightingale.audio.reference_check import check_reference, clipped_share, sound_span
from nightingale.errors import BadReference


def test_a_good_clip_passes_without_a_warning(clip):
    wav = clip(7.0, 24_000)
    assert check_reference(wav, 24_000, longer_than_s=5.0) == ()
    start, end = sound_span(wav)
    assert 5.5 < (end - start) / 24_000 < 7.0
    assert clipped_share(wav) == 0.0


def test_a_clip_must_be_longer_than_the_models_minimum(clip):
    with pytest.raises(BadReference, match=r"too short.*more than 5 s"):
        check_reference(clip(5.0, 24_000), 24_000, longer_than_s=5.0)
    check_reference(clip(5.01, 24_000), 24_000, longer_than_s=5.0)


@pytest.mark.parametrize("level", [0.0, 1e-4])
def test_a_silent_clip_is_refused(clip, level):
    with pytest.raises(BadReference, match="silent"):
        check_reference(clip(3.0, 24_000) * np.float32(level), 24_000, longer_than_s=1.0)


def test_empty_clips_and_nan_are_refused():
    with pytest.raises(BadReference, match="too short"):
        check_reference(np.zeros(0, dtype=np.float32), 24_000, longer_than_s=1.0)
    with pytest.raises(BadReference, match="silent"):
        check_reference(np.full(48_000, np.nan, dtype=np.float32), 24_000, longer_than_s=1.0)


def test_clipping_is_a_warning(clip):
    wav = np.clip(clip(3.0, 24_000) * 20, -1, 1).astype(np.float32)
    (warning,) = check_reference(wav, 24_000, longer_than_s=1.0)
    assert "clipped" in warning


def test_a_clip_that_is_mostly_silence_is_a_warning(clip):
    wav = np.concatenate((clip(2.0, 24_000), np.zeros(6 * 24_000, dtype=np.float32)))
    (warning,) = check_reference(wav, 24_000, longer_than_s=5.0)
    assert "near silence" in warning


def test_only_runs_at_full_scale_count_as_clipping():
    wav = np.zeros(1000, dtype=np.float32)
    wav[[10, 20, 21]] = 1.0
    assert clipped_share(wav) == 0.0
    wav[-4:] = -1.0
    assert clipped_share(wav) == pytest.approx(4 / 1000)
