"""The rates of the pipeline fit each other without a remainder."""

from __future__ import annotations

from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS


def test_every_ratio_is_exact() -> None:
    assert CLOCKS.token_rate_hz * CLOCKS.frames_per_token == CLOCKS.frame_rate_hz
    assert CLOCKS.frame_rate_hz * CLOCKS.samples_per_frame == CLOCKS.sample_rate_hz
    assert CLOCKS.token_rate_hz * CLOCKS.samples_per_token == CLOCKS.sample_rate_hz
    assert ANALYSIS_RATE_HZ % CLOCKS.token_rate_hz == 0
