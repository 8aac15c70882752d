"""The four clocks of speech synthesis and the exact ratios between them.

Text ids have no clock. Speech tokens run at 25 Hz, mel frames at 50 Hz, samples at 24 kHz. Most streaming
bugs are a wrong conversion between two of these, so only this file converts, and a remainder is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from nightingale.errors import ConfigError


def exact_div(numerator: int, denominator: int) -> int:
    """The quotient, which must be whole."""
    quotient, remainder = divmod(numerator, denominator)
    if remainder:
        raise ConfigError(
            "two clocks do not divide",
            got=f"{numerator} / {denominator}",
            allowed="rates whose ratio is a whole number",
            fix="Correct the rates of this model's config.",
        )
    return quotient


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The rates of one voice pipeline."""

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
"""The speech tokenizer, the voice encoder and the x-vector network listen at this rate."""
