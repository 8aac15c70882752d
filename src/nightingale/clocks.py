"""The rates of speech tokens (25 Hz), mel frames (50 Hz) and samples (24 kHz), and their exact ratios.

Most streaming bugs are a wrong conversion between two rates, so only this file converts, and a remainder is
an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from nightingale.errors import ConfigError


def exact_div(numerator: int, denominator: int) -> int:
    """Return the quotient, or raise `ConfigError` if there is a remainder."""
    quotient, remainder = divmod(numerator, denominator)
    if remainder:
        raise ConfigError(
            "two rates do not divide",
            got=f"{numerator} / {denominator}",
            allowed="rates whose ratio is a whole number",
            fix="Correct the rates of this model's config.",
        )
    return quotient


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The rates of one synthesis pipeline."""

    sample_rate_hz: int = 24_000
    token_rate_hz: int = 25
    frames_per_token: int = 2

    @property
    def frame_rate_hz(self) -> int:
        return self.token_rate_hz * self.frames_per_token

    @property
    def samples_per_frame(self) -> int:
        return exact_div(self.sample_rate_hz, self.frame_rate_hz)

    @property
    def samples_per_token(self) -> int:
        return self.samples_per_frame * self.frames_per_token


CLOCKS = Clocks()
ANALYSIS_RATE_HZ = 16_000
"""The input rate of the speech tokenizer, the voice encoder and the x-vector network."""
