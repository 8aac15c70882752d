"""One request, measured from outside, the same way wherever it is answered: engine, server or peer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from nightingale_lab.bench.speed.player import Playback, play


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """What one request cost its listener."""

    ttfa_ms: float
    """Time to first audio."""
    total_ms: float
    audio_seconds: float
    gaps_ms: tuple[float, ...] = ()
    playback: Playback
    tokens: int = 0
    stage_ms: dict[str, float] = field(default_factory=dict)
    """By stage, where the one who answered tells."""

    @property
    def rtf(self) -> float:
        """Seconds of waiting per second of audio."""
        return self.total_ms / 1000 / self.audio_seconds if self.audio_seconds else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Insight:
    """What only the engine knows of a request."""

    tokens: int = 0
    stage_ms: dict[str, float] = field(default_factory=dict)


Chunks = Iterator[float]
"""Seconds of audio of each chunk, as it arrives."""
Speaks = Callable[[str, int], tuple[Chunks, Callable[[], Insight]]]
"""(text, seed) to its chunks, and to what is known of them when they have come."""


def take(speaks: Speaks, text: str, seed: int) -> Took:
    begun = time.perf_counter()
    chunks, insight = speaks(text, seed)
    arrivals, lengths = [], []
    for seconds in chunks:
        if seconds > 0:
            arrivals.append(time.perf_counter() - begun)
            lengths.append(seconds)
    total = time.perf_counter() - begun
    known = insight()
    return Took(
        ttfa_ms=1000 * (arrivals[0] if arrivals else total),
        total_ms=1000 * total,
        audio_seconds=sum(lengths),
        gaps_ms=tuple(1000 * (b - a) for a, b in pairwise(arrivals)),
        playback=play(arrivals, lengths),
        tokens=known.tokens,
        stage_ms=known.stage_ms,
    )
