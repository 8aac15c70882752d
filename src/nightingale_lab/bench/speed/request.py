"""One request, timed from outside in the same way for every target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from nightingale_lab.bench.speed.player import Playback, play


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Details of a request that only our engine reports."""

    tokens: int = 0
    stage_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    ttfa_ms: float
    """Time to first audio."""
    total_ms: float
    audio_seconds: float
    gaps_ms: tuple[float, ...] = ()
    playback: Playback
    details: Details

    @property
    def rtf(self) -> float:
        """Real-time factor: seconds of waiting per second of audio."""
        return self.total_ms / 1000 / self.audio_seconds if self.audio_seconds else float("inf")


Chunks = Iterator[float]
"""Seconds of audio in each chunk, as it arrives."""
Target = Callable[[str, int], tuple[Chunks, Callable[[], Details]]]
"""Takes a text and a seed. Returns the chunks, and a function to call after the last of them."""


def time_request(target: Target, text: str, seed: int) -> RequestTimes:
    return open_request(target, text, seed)()


def open_request(target: Target, text: str, seed: int) -> Callable[[], RequestTimes]:
    """Open a request, and return the function that reads it to its end."""
    begun = time.perf_counter()
    chunks, details = target(text, seed)
    return lambda: _read(chunks, details, begun)


def _read(chunks: Chunks, details: Callable[[], Details], begun: float) -> RequestTimes:
    arrivals, lengths = [], []
    for seconds in chunks:
        if seconds > 0:
            arrivals.append(time.perf_counter() - begun)
            lengths.append(seconds)
    total = time.perf_counter() - begun
    return RequestTimes(
        ttfa_ms=1000 * (arrivals[0] if arrivals else total),
        total_ms=1000 * total,
        audio_seconds=sum(lengths),
        gaps_ms=tuple(1000 * (b - a) for a, b in pairwise(arrivals)),
        playback=play(arrivals, lengths),
        details=details(),
    )
