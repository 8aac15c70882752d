"""Simulate a player that starts with the first chunk, and count its underruns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Playback:
    underruns: int
    """Times the player had nothing to play before the end."""
    stalled_s: float
    """Total silence caused by underruns."""
    least_lead_s: float
    """The least audio left to play when a chunk arrived; negative after an underrun."""


def play(arrivals_s: Sequence[float], lengths_s: Sequence[float]) -> Playback:
    """Play chunks in order, given when each arrived and how long it lasts."""
    underruns, stalled, leads = 0, 0.0, []
    ends_at = float("inf")
    for number, (arrival, length) in enumerate(zip(arrivals_s, lengths_s, strict=True)):
        if number == 0:
            ends_at = arrival + length
            continue
        lead = ends_at - arrival
        leads.append(lead)
        if lead < 0:
            underruns += 1
            stalled -= lead
            ends_at = arrival
        ends_at += length
    return Playback(underruns=underruns, stalled_s=stalled, least_lead_s=min(leads, default=0.0))
