"""The rates of speech tokens, mel frames and samples, and their ratios.

Most streaming bugs are a wrong conversion between two rates, so all ratios are in this file.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Clocks(NamedTuple):
    """The rates of the synthesis pipeline. tests/test_clocks.py checks that they fit each other."""

    sample_rate_hz: int = 24_000
    token_rate_hz: int = 25
    frame_rate_hz: int = 50
    frames_per_token: int = 2
    samples_per_frame: int = 480
    samples_per_token: int = 960


CLOCKS: Final = Clocks()
ANALYSIS_RATE_HZ: Final = 16_000
"""The input rate of the speech tokenizer, the voice encoder and the x-vector network."""
