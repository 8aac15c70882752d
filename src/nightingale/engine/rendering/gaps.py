"""Statistics of the time between audio chunks, in bounded memory however long a request runs."""

from __future__ import annotations

import random
from typing import Final

SAMPLE_SIZE: Final = 512
"""Large enough that two times in three the p95 lies between the 94th and the 96th percentile of all gaps."""


class ChunkGapStats:
    """Count every gap and keep a uniform random sample of SAMPLE_SIZE of them (reservoir sampling)."""

    def __init__(self) -> None:
        self.count, self.sum_ms, self.longest_ms = 0, 0.0, 0.0
        self.sample_ms: list[float] = []
        self._rng: random.Random | None = None  # created on demand: short requests never need it

    def add(self, gap_ms: float) -> None:
        self.count += 1
        self.sum_ms += gap_ms
        self.longest_ms = max(self.longest_ms, gap_ms)
        if len(self.sample_ms) < SAMPLE_SIZE:
            self.sample_ms.append(gap_ms)
            return
        self._rng = self._rng or random.Random(0)
        if (index := self._rng.randrange(self.count)) < SAMPLE_SIZE:
            self.sample_ms[index] = gap_ms
