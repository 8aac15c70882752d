"""The engine's measured synthesis rate, from which it knows how many listeners it can keep supplied."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from nightingale.clocks import CLOCKS

TIME_CONSTANT_S: Final = 4.0
"""Older measurements weigh less by a factor of e after this much working time."""
LEAST_S: Final = 0.2
"""Working time before the rate is known."""
ENOUGH: Final = 0.5
"""The share of the streams that the known rate supplies which must run: fewer leave cores or a GPU partly idle."""


@dataclass(slots=True)
class _Mean:
    """Audio over working time, the latest of it weighed most."""

    audio_s: float = 0.0
    work_s: float = 0.0

    def add(self, audio_s: float, work_s: float) -> None:
        kept = math.exp(-work_s / TIME_CONSTANT_S)
        self.audio_s = kept * self.audio_s + audio_s
        self.work_s = kept * self.work_s + work_s

    @property
    def rate(self) -> float:
        return self.audio_s / self.work_s if self.work_s >= LEAST_S else 0.0


@dataclass(slots=True)
class RateMeter:
    """Measure seconds of audio per second of work, over all streams.

    What few streams reach is a lower bound of what more of them would. So the rate is the larger one of two
    means: over all time, and over the time in which enough streams ran.
    """

    _always: _Mean = field(default_factory=_Mean)
    _busy: _Mean = field(default_factory=_Mean)
    _streams: int = 0
    """Streams from which on the second one is taken."""
    _last_s: float | None = None

    @property
    def rate(self) -> float | None:
        """Seconds of audio per second; None before it is known."""
        return max(self._always.rate, self._busy.rate) or None

    def add(self, samples: int, now_s: float, *, streams: int) -> None:
        """Count audio that was rendered since the last call, while this many streams ran."""
        if self._last_s is not None:
            audio_s, work_s = samples / CLOCKS.sample_rate_hz, now_s - self._last_s
            enough = streams >= ENOUGH * (self.rate or 0.0)
            self._always.add(audio_s, work_s)
            if streams >= 2 * self._streams:  # so many more that what was measured says little
                self._busy = _Mean()
                self._streams = streams
            if enough:
                self._busy.add(audio_s, work_s)
        self._last_s = now_s

    def start(self, now_s: float) -> None:
        """Start the clock, if it is stopped."""
        self._last_s = now_s if self._last_s is None else self._last_s

    def pause(self) -> None:
        """Stop the clock: there is no work until the next call of `add`."""
        self._last_s = None
