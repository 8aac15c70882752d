"""The most concurrent listeners that are served in time: doubling, then bisection.

They are served in time if first audio p95 is within a limit and at most one in a hundred has an underrun.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nightingale.errors import NightingaleError


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLimits:
    first_audio_ms: float = 500.0
    """Bound of first audio, p95."""
    stalled_share: float = 0.01
    """Bound of the share of listeners with an underrun."""

    def exceeded(self, row: dict[str, Any]) -> str | None:
        """Return which limit a row of `measure_listeners` exceeds, in words; None if it is within all."""
        if "error" in row:
            return str(row["error"])
        if row["ttfa_ms_p95"] > self.first_audio_ms:
            return f"first audio p95 {row['ttfa_ms_p95']:.0f} ms"
        if row["stalled_share"] > self.stalled_share:
            return f"underruns for {100 * row['stalled_share']:.1f} % of listeners"
        return None


def find_capacity(
    measure: Callable[[int], dict[str, Any]],
    limits: CapacityLimits,
    *,
    start: int = 1,
    most: int = 1024,
    precision: float = 0.06,
) -> dict[str, Any]:
    """Return the most listeners within the limits, what limits more of them, and every row that was measured.

    measure: returns the row of so many listeners. precision: the search ends when the smallest number that
    fails is this share above the largest that passes, or one more.
    """
    tried: list[dict[str, Any]] = []

    def passes(listeners: int) -> bool:
        try:
            row = measure(listeners)
        except NightingaleError as error:  # refused
            row = {"listeners": listeners, "error": str(error).splitlines()[0]}
        tried.append({**row, "exceeded": limits.exceeded(row)})
        return tried[-1]["exceeded"] is None

    low, high, level = 0, most + 1, max(1, min(start, most))
    while True:
        if passes(level):
            low = level
        else:
            high = level
        if high - low <= max(1.0, precision * low):
            break
        between = high // 2 if low == 0 else (low + high) // 2
        level = min(2 * low, most) if high > most else between
    reason = next((row["exceeded"] for row in tried if row["listeners"] == high), None)
    return {"listeners": low, "limited_by": reason or f"no more than {most} were tried", "tried": tried}
