"""Faster or slower speech at the same pitch: WSOLA, as samples arrive.

Speech is cut into overlapping windows which are laid down again closer together or further apart. Each is
taken from near the place where it belongs, at the spot that best continues the wave laid down before (the
waveform similarity of Verhelst and Roelands, 1993); so periods stay whole, and the pitch stays.

Where a window is taken from depends on samples by their absolute position only, never on how they were
chunked: pieces give the same bytes as one. It needs to hear some 60 ms ahead.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from nightingale.errors import ConfigError
from nightingale.types import Samples

SLOWEST: Final = 0.25
FASTEST: Final = 4.0
HOP_MS: Final = 15
"""Half a window: two periods of a low voice fit into one."""
REACH_MS: Final = 8
"""How far from its place a window may be taken; both ways together, a period of a voice at 65 Hz."""
QUIET: Final = 1e-10
"""Mean square below which there is no wave to continue."""


class Stretcher:
    """One stretch of speech at another speed. Make a new one for each."""

    def __init__(self, rate_hz: int, speed: float) -> None:
        check_speed(speed)
        self._speed = speed
        self._hop, self._reach = rate_hz * HOP_MS // 1000, rate_hz * REACH_MS // 1000
        # A raised cosine: two of them, a hop apart, add up to one.
        angle = (np.arange(self._hop) + 0.5) * (np.pi / 2 / self._hop)
        self._rise = (np.sin(angle) ** 2).astype(np.float32)
        self._fall = 1 - self._rise
        # Held as float32; the first sample of `_heard` is sample number `_origin` of the input.
        self._heard: Samples = np.zeros(0, np.float32)
        self._origin, self._received = 0, 0
        self._window = 0
        """Number of the next window."""
        self._from = 0
        """Where the last window was taken from."""
        # Compared in buffers of their own, always aligned alike, so that sums are the same bit by bit.
        self._wanted = np.zeros(2 * self._hop, np.float32)
        self._around = np.zeros(2 * self._hop + 2 * self._reach, np.float32)

    def push(self, samples: Samples, *, final: bool = False) -> Samples:
        """The samples that are settled now. After the last push they are `round(pushed / speed)` in all."""
        if self._speed == 1:
            return samples
        self._heard = np.concatenate([self._heard, samples])
        self._received += len(samples)
        settled = [self._settle(window) for window in range(self._window, self._due(final))]
        if not settled:
            return np.zeros(0, np.float32)
        if final:
            excess = self._window * self._hop - round(self._received / self._speed)
            settled[-1] = settled[-1][: self._hop - excess]
        self._forget()
        return np.concatenate(settled)

    def _due(self, final: bool) -> int:
        """How many windows there are, as far as can be told from what was received."""
        hop, reach = self._hop, self._reach
        if final:
            wanted = round(self._received / self._speed)
            # What the last windows see behind the end is silence.
            self._heard = np.concatenate([self._heard, np.zeros(4 * hop + 2 * reach, np.float32)])
            return -(-wanted // hop)
        # Window w and the one it continues both end before place(w) + 3 hops + reach. And what it lays down
        # must be wanted, should this be the end: above 3.5 times the speed that is known later.
        due = self._window
        while (
            self._place(due) + 3 * hop + reach <= self._received
            and (due + 1) * hop * self._speed <= self._received
        ):
            due += 1
        return due

    def _place(self, window: int) -> int:
        return int(window * self._hop * self._speed + 0.5)

    def _settle(self, window: int) -> Samples:
        """One hop of output: the end of the last window fading into the beginning of this one."""
        hop = self._hop
        if window == 0:
            self._window = 1
            return self._at(0, hop).copy()
        start = self._best(window)
        # The second half of the last window is where its second hop is; the first window was laid down whole.
        out: Samples = self._at(self._from + hop, hop) * self._fall + self._at(start, hop) * self._rise
        self._from, self._window = start, window + 1
        return out

    def _best(self, window: int) -> int:
        """Where near its place the input looks most like the continuation of the last window."""
        place, reach = self._place(window), self._reach
        low = max(0, place - reach)
        around = self._around[: 2 * self._hop + place + reach - low]
        self._wanted[:] = self._at(self._from + self._hop, 2 * self._hop)
        around[:] = self._at(low, len(around))
        if np.dot(self._wanted, self._wanted) <= QUIET * len(self._wanted):
            return place
        likeness = np.correlate(around, self._wanted, "valid")
        power = np.concatenate([[0.0], np.cumsum(np.square(around, dtype=np.float64))])
        energy = power[2 * self._hop :] - power[: -2 * self._hop]
        return low + int(np.argmax(likeness / np.sqrt(energy + QUIET)))

    def _at(self, start: int, count: int) -> Samples:
        return self._heard[start - self._origin : start - self._origin + count]

    def _forget(self) -> None:
        """Drop what no later window can reach."""
        keep = max(self._origin, min(self._from + self._hop, self._place(self._window) - self._reach))
        self._heard = self._heard[keep - self._origin :]
        self._origin = keep


def check_speed(speed: float) -> None:
    # Written so that NaN, too, is refused.
    if not (isinstance(speed, int | float) and not isinstance(speed, bool) and SLOWEST <= speed <= FASTEST):
        raise ConfigError(
            "speed is out of range",
            got=repr(speed),
            allowed=f"a number from {SLOWEST} to {FASTEST}",
            fix="1 is the model's own speed.",
        )
