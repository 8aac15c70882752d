"""Streaming time stretching: faster or slower speech at the same pitch, by WSOLA.

Overlapping windows of the input are added up closer together or further apart. Each window is taken from near
its nominal position, at the offset where the input best continues the previous window (waveform similarity
overlap-add, Verhelst and Roelands 1993); so periods stay whole, and with them the pitch.

Offsets depend on samples by their absolute position only, not on chunk boundaries: any chunking gives the
same output bits. The lookahead is about 60 ms.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from nightingale.engine.faults import check_range
from nightingale.request_options import MAX_SPEED, MIN_SPEED
from nightingale.types import Samples

HOP_MS: Final = 15
"""Half a window; a window holds two periods of a low voice."""
SEARCH_MS: Final = 8
"""Largest offset from the nominal position; both directions together are a period at 65 Hz."""
SILENCE_POWER: Final = 1e-10
"""Mean square below which there is no waveform to continue."""


class TimeStretcher:
    """Change the speed of one utterance. State belongs to the utterance: use a new object for each."""

    def __init__(self, rate_hz: int, speed: float) -> None:
        check_range("speed", speed, MIN_SPEED, MAX_SPEED)
        self._speed = speed
        self._hop = rate_hz * HOP_MS // 1000
        self._search = rate_hz * SEARCH_MS // 1000
        # Raised cosines: two of them, one hop apart, add up to one.
        angle = (np.arange(self._hop) + 0.5) * (np.pi / 2 / self._hop)
        self._fade_in = (np.sin(angle) ** 2).astype(np.float32)
        self._fade_out = 1 - self._fade_in
        self._input: Samples = np.zeros(0, np.float32)
        """Input that later windows may need; it begins at sample `_origin` of the whole input."""
        self._origin = 0
        self._received = 0
        self._window = 0
        """Number of the next window."""
        self._last_start = 0
        """Start of the last window in the input."""
        # Windows are compared in these buffers, whose alignment never changes, so that sums are bit-exact.
        self._target = np.zeros(2 * self._hop, np.float32)
        self._candidates = np.zeros(2 * self._hop + 2 * self._search, np.float32)

    def push(self, samples: Samples, *, final: bool = False) -> Samples:
        """Add input and return the output that is certain: `round(pushed / speed)` samples after the last."""
        if self._speed == 1:
            return samples
        self._input = np.concatenate([self._input, samples])
        self._received += len(samples)
        hops = [self._next_hop() for _ in range(self._window, self._ready_windows(final))]
        if not hops:
            return np.zeros(0, np.float32)
        if final:
            excess = self._window * self._hop - round(self._received / self._speed)
            hops[-1] = hops[-1][: self._hop - excess]
        self._drop_input()
        return np.concatenate(hops)

    def _ready_windows(self, final: bool) -> int:
        """Return how many windows can be placed with the input received so far."""
        hop, search = self._hop, self._search
        if final:
            # The last windows extend beyond the input, where there is silence.
            self._input = np.concatenate([self._input, np.zeros(4 * hop + 2 * search, np.float32)])
            return -(-round(self._received / self._speed) // hop)
        # Window w, and the one it continues, end before nominal(w) + 3 hops + search. Its output must also be
        # within the final length if the input ends here: above 3.5 times the speed that is known later.
        ready = self._window
        while (
            self._nominal(ready) + 3 * hop + search <= self._received
            and (ready + 1) * hop * self._speed <= self._received
        ):
            ready += 1
        return ready

    def _nominal(self, window: int) -> int:
        return int(window * self._hop * self._speed + 0.5)

    def _next_hop(self) -> Samples:
        """Return a hop of output: the end of the last window crossfaded with the beginning of the next."""
        hop, window = self._hop, self._window
        self._window += 1
        if window == 0:
            return self._slice(0, hop).copy()
        start = self._best_start(window)
        out: Samples = (
            self._slice(self._last_start + hop, hop) * self._fade_out
            + self._slice(start, hop) * self._fade_in
        )
        self._last_start = start
        return out

    def _best_start(self, window: int) -> int:
        """Return the start near the nominal one whose input is most similar to what follows the last one."""
        nominal, search = self._nominal(window), self._search
        low = max(0, nominal - search)
        candidates = self._candidates[: 2 * self._hop + nominal + search - low]
        self._target[:] = self._slice(self._last_start + self._hop, 2 * self._hop)
        candidates[:] = self._slice(low, len(candidates))
        if np.dot(self._target, self._target) <= SILENCE_POWER * len(self._target):
            return nominal
        correlation = np.correlate(candidates, self._target, "valid")
        power = np.concatenate([[0.0], np.cumsum(np.square(candidates, dtype=np.float64))])
        energy = power[2 * self._hop :] - power[: -2 * self._hop]
        return low + int(np.argmax(correlation / np.sqrt(energy + SILENCE_POWER)))

    def _slice(self, start: int, count: int) -> Samples:
        return self._input[start - self._origin : start - self._origin + count]

    def _drop_input(self) -> None:
        """Drop input that no later window can need."""
        needed = min(self._last_start + self._hop, self._nominal(self._window) - self._search)
        self._input = self._input[max(0, needed - self._origin) :]
        self._origin = max(self._origin, needed)
