"""Would a player that starts at the first chunk ever starve? A simulation over arrival times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Playback:
    underruns: int
    """Times it had nothing to play before the end."""
    stalled_s: float
    """How long it was silent for that, in all."""
    least_lead_s: float
    """Seconds still to be played when the next chunk came, at its worst; negative if it starved."""


def play(arrivals_s: Sequence[float], lengths_s: Sequence[float]) -> Playback:
    """Chunks in order: when each arrived, and how long it sounds. Playing begins with the first."""
    underruns, stalled, least = 0, 0.0, float("inf")
    runs_dry_at = 0.0
    for number, (arrival, length) in enumerate(zip(arrivals_s, lengths_s, strict=True)):
        if number == 0:
            runs_dry_at = arrival + length
            continue
        lead = runs_dry_at - arrival
        least = min(least, lead)
        if lead < 0:
            underruns += 1
            stalled -= lead
            runs_dry_at = arrival
        runs_dry_at += length
    return Playback(
        underruns=underruns, stalled_s=stalled, least_lead_s=0.0 if least == float("inf") else least
    )
