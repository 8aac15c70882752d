"""Random rooms, microphones and noise."""

from __future__ import annotations

import torch

from nightingale_lab.train.recording_changes import NOISE_DB, change_recordings

RATE_HZ = 24_000


def test_every_recording_is_changed_in_its_own_way_and_keeps_its_level_and_its_time() -> None:
    torch.manual_seed(0)
    speech = torch.zeros(1, RATE_HZ)
    speech[:, 8_000:16_000] = 0.3 * torch.randn(8_000)
    changed = change_recordings(speech.expand(6, -1), RATE_HZ)
    assert changed.shape == (6, RATE_HZ)
    level = changed.square().mean(1).sqrt() / speech.square().mean().sqrt()
    assert (level > 0.95).all()
    assert (level < 1.2).all()
    assert len({round(float(each[9_000]), 6) for each in changed}) == 6
    # The first third is silent but for the noise.
    before = changed[:, :7_900].square().mean(1).sqrt() / speech.square().mean().sqrt()
    assert (before < 1.2 * 10 ** (NOISE_DB[1] / 20)).all()
    assert (before > 0).all()


def test_silence_stays_finite() -> None:
    assert torch.isfinite(change_recordings(torch.zeros(2, 4_800), RATE_HZ)).all()
