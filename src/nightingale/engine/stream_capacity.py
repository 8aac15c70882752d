"""The number of streams that the engine can keep supplied, and the wait of the others.

A listener plays in real time from its first chunk on. The engine makes `rate` seconds of audio per second, over
all streams. So all listeners are supplied in time if, at any time t from now, the audio that they will have
played by then, beyond what they have already, is not more than `rate * t`. A new stream is admitted if that
still holds with it. The same model, run forward, estimates when each waiting request will be admitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from nightingale.engine.rate import RateMeter
from nightingale.errors import ConfigError

MaxStreams = int | Literal["auto"]

CHARS_PER_S: Final = 15.0
"""Text that is spoken in a second, before the engine has measured it."""
FIRST_AUDIO_S: Final = 0.2
"""Time from admission to first audio, before the engine has measured it."""
RATE_SHARE: Final = 0.85
"""The share of the rate that is given to listeners: audio is made in blocks, and lengths are estimates."""
SEGMENT_RATE_SHARE: Final = 0.5
"""The same where segments are rendered whole: one may take twice as long as the one that plays meanwhile."""
WEIGHT: Final = 0.2
"""Weight of the latest request in a running mean."""
UNKNOWN_STREAMS: Final = 2
"""Streams that may run before the rate is known, which takes a moment."""
DECODED_S: Final = 0.7
"""Audio that is left to render when all tokens of a stream are decoded, about: its slot is free then."""
BLOCK_S: Final = 0.01
"""Time per block of a full batch, before the engine has measured it."""
SMALL_BATCH_S: Final = 0.04
"""Time of a batch of few blocks, before the engine has measured it."""
LARGE_BATCH: Final = 0.5
"""The share of the largest batch from which on its time per block is that of a full one."""
LARGE_BLOCK_S: Final = 2.5
"""Audio of a block while many streams run, where they are rendered in batches."""
STEPS: Final = 400
"""Steps of an estimate, from now until all audio is made."""


class Demand(NamedTuple):
    """The future of one stream."""

    buffered_s: float
    """Time until its listener has nothing to play; for a new one, until it starts to play."""
    left_s: float
    """Audio that is still to be made; infinite if the text is not known yet."""


def can_supply(streams: Sequence[Demand], rate: float) -> bool:
    """Return whether no listener runs out of audio at this rate, in seconds of audio per second."""
    if sum(math.isinf(stream.left_s) for stream in streams) > rate:
        return False
    # What listeners need grows in proportion to time between the moments at which a stream ends.
    ends_s = (sum(stream) for stream in streams if not math.isinf(stream.left_s))
    return all(_needed_s(streams, end_s) <= rate * max(0.0, end_s) for end_s in ends_s)


def _needed_s(streams: Sequence[Demand], by_s: float) -> float:
    return sum(min(left_s, max(0.0, by_s - buffered_s)) for buffered_s, left_s in streams)


class QueuePlace(NamedTuple):
    """The place of a request that has to wait."""

    position: int
    """Its position among the requests that have not started: 1 for the next one."""
    wait_s: float | None
    """Estimated seconds until it starts; None if that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """The load of an engine at this moment."""

    waiting: int
    """Requests that wait for a slot."""
    speaking: int
    """Requests in slots."""
    slots: int
    rate: float | None = None
    """Seconds of audio that the engine makes per second of work; None before it is known."""
    wait_s: float | None = 0.0
    """Estimated wait of a request that arrives now, in seconds; None if that is not known."""
    capacity: int | None = None
    """Listeners that can be kept supplied at once; None before it is known."""


def check_max_streams(value: object) -> MaxStreams:
    """Return a valid limit of concurrent streams, or raise ConfigError."""
    if value == "auto":
        return "auto"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ConfigError(
        "not a number of concurrent streams",
        got=repr(value),
        allowed='a positive integer, or "auto" for as many as the engine can keep supplied',
        param="max_streams",
    )


@dataclass(slots=True)
class Capacity:
    """Decide whether a new stream may start, by a fixed number or by the measured rate."""

    max_streams: MaxStreams = "auto"
    meter: RateMeter = field(default_factory=RateMeter)
    first_audio_s: float = FIRST_AUDIO_S
    """Time from admission to first audio, a running mean."""
    chars_per_s: float = CHARS_PER_S
    whole_segments: bool = False
    """True if segments are rendered whole, not in blocks."""
    batching: bool = False
    """True if many blocks are rendered at a time, where a block takes about as long whatever its length."""
    block_s: float = BLOCK_S
    """Time per block of a full batch, a running mean."""
    small_batch_s: float = SMALL_BATCH_S
    """Time of a batch of few blocks, a running mean."""
    _rendered_s: float = 0.0
    """When the last batch was rendered."""

    @property
    def rate(self) -> float | None:
        """Seconds of audio per second of work; None before it is known."""
        return self.meter.rate

    @property
    def streams(self) -> int | None:
        """Streams of any length that can be kept supplied at once; None before the rate is known."""
        if self.max_streams != "auto":
            return self.max_streams
        if self.batching:
            return max(1, int(RATE_SHARE * LARGE_BLOCK_S / self.block_s))
        share = SEGMENT_RATE_SHARE if self.whole_segments else RATE_SHARE
        return None if self.rate is None else max(1, int(share * self.rate))

    def start(self, now_s: float) -> None:
        """Measure the rate from now on, if the clock is stopped. Blocks count from the first one that is rendered:
        it is much shorter than what comes before it."""
        if self.whole_segments:
            self.meter.start(now_s)

    def learn(self, first_audio_s: float, chars: float | None, audio_s: float) -> None:
        """Take the values of a request that has ended into the running means."""
        self.first_audio_s += WEIGHT * (first_audio_s - self.first_audio_s)
        if chars:
            self.chars_per_s += WEIGHT * (chars / audio_s - self.chars_per_s)

    def rendered(self, blocks: int, started_s: float, now_s: float, *, share: float) -> None:
        """Take the time of a batch into the running mean. share: of the largest batch."""
        took_s = now_s - max(started_s, self._rendered_s)
        self._rendered_s = now_s
        if share >= LARGE_BATCH:
            self.block_s += WEIGHT * (took_s / blocks - self.block_s)
        else:
            self.small_batch_s += WEIGHT * (took_s - self.small_batch_s)

    def batches_s(self, blocks: int, largest: int) -> float:
        """Return the time of so many blocks in batches of this size: few blocks take as long as a small batch."""
        return max(blocks * self.block_s, -(-blocks // largest) * self.small_batch_s)

    def admits(self, running: Sequence[Demand], left_s: float) -> bool:
        """Return whether a stream with so much audio may start beside those that run."""
        if self.max_streams != "auto":
            return len(running) < self.max_streams
        if self.batching:  # what few streams reach says nothing about more of them
            return (len(running) + 1) * self.block_s <= RATE_SHARE * LARGE_BLOCK_S
        rate = self.rate
        if rate is None:
            return len(running) < UNKNOWN_STREAMS
        if not running or rate < 1:  # below 1 not even a single listener is supplied
            return True
        share = SEGMENT_RATE_SHARE if self.whole_segments else RATE_SHARE
        return can_supply([*running, Demand(self.first_audio_s, left_s)], share * rate)

    def waits_s(self, running: Sequence[Demand], waiting: Sequence[float], *, slots: int) -> list[float]:
        """Estimate when requests with so much audio each will start, in order; infinite if that is not known."""

        def is_free(left_s: float) -> bool:
            decoding = sum(stream.left_s > DECODED_S for stream in streams)
            return decoding < slots and self.admits(streams, left_s)

        rate, streams, starts_s = self.rate, list(running), []
        known = [left_s for _, left_s in running if not math.isinf(left_s)]
        work_s = (sum(known) + sum(left for left in waiting if not math.isinf(left))) / (rate or 1.0)
        step_s, now_s = max(work_s / STEPS, 0.01), 0.0
        for left_s in waiting:
            while not is_free(left_s) and now_s <= work_s:
                streams = advance(streams, step_s, rate or 1.0)
                now_s += step_s
            starts_s.append(now_s if is_free(left_s) else math.inf)
            streams.append(Demand(self.first_audio_s, left_s))
        return starts_s


def known_wait_s(wait_s: float) -> float | None:
    """Return an estimate, rounded; None if there is none because the length of a text is not known yet."""
    return None if math.isinf(wait_s) else round(wait_s, 3)


def advance(streams: Sequence[Demand], step_s: float, rate: float) -> list[Demand]:
    """Return what is left after a step in which the streams got audio in order of their deadlines."""
    budget_s, after = rate * step_s, []
    for rank, (buffered_s, left_s) in enumerate(ordered := sorted(streams, key=lambda one: one.left_s)):
        # Streams take turns with small blocks, so each gets an equal share unless it needs less.
        share_s = min(left_s, budget_s / (len(ordered) - rank))
        budget_s -= share_s
        if left_s > share_s:
            after.append(Demand(max(buffered_s - step_s, 0.0) + share_s, left_s - share_s))
    return after
