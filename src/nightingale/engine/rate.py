"""The engine's measured synthesis rate, from which it knows how many listeners it can keep supplied."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from nightingale.clocks import CLOCKS

TIME_CONSTANT_S: Final = 4.0
"""Older measurements weigh less by a factor of e after this much working time."""
LEAST_S: Final = 0.2
"""Working time before the rate is known."""
NEEDED_SHARE: Final = 0.5
"""A measurement counts if at least this share of the streams runs that the known rate supplies: fewer leave
cores or a GPU partly idle."""


@dataclass(slots=True)
class RateMeter:
    """Measure seconds of audio per second of work, over all streams."""

    _audio_s: float = 0.0
    _work_s: float = 0.0
    _last_s: float | None = None

    @property
    def rate(self) -> float | None:
        """Seconds of audio per second; None before it is known."""
        return self._audio_s / self._work_s if self._work_s >= LEAST_S else None

    def add(self, samples: int, now_s: float, *, streams: int) -> None:
        """Count audio that was rendered since the last call, while this many streams ran."""
        rate = self.rate
        if rate is not None and streams < NEEDED_SHARE * rate:
            self._last_s = None
            return
        if self._last_s is not None:
            work_s = now_s - self._last_s
            kept = math.exp(-work_s / TIME_CONSTANT_S)
            self._audio_s = kept * self._audio_s + samples / CLOCKS.sample_rate_hz
            self._work_s = kept * self._work_s + work_s
        self._last_s = now_s

    def pause(self) -> None:
        """Stop the clock: there is no work until the next call of `add`."""
        self._last_s = None
