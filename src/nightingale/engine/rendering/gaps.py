"""The gaps between the chunks of a request, in the memory of a few hundred, however long it speaks."""

from __future__ import annotations

import random
from typing import Final

KEPT: Final = 512
"""Enough for a p95 that lies between the 94th and the 96th percentile of all, two times in three."""


class Gaps:
    """Counts all, and keeps up to KEPT of them: each that came is kept with the same chance."""

    def __init__(self) -> None:
        self.count, self.sum_ms, self.longest_ms = 0, 0.0, 0.0
        self.kept_ms: list[float] = []
        # Its own, and made when it is needed: whoever speaks for a minute never needs it.
        self._rng: random.Random | None = None

    def add(self, gap_ms: float) -> None:
        self.count += 1
        self.sum_ms += gap_ms
        self.longest_ms = max(self.longest_ms, gap_ms)
        if len(self.kept_ms) < KEPT:
            self.kept_ms.append(gap_ms)
            return
        self._rng = self._rng or random.Random(0)
        place = self._rng.randrange(self.count)
        if place < KEPT:
            self.kept_ms[place] = gap_ms
