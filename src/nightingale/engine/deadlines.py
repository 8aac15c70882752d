"""Playback deadlines of requests, and what follows from them and from the engine's rate.

A listener's deadline is the moment when it runs out of audio. Blocks are rendered in the order of deadlines
(earliest deadline first).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from nightingale.clocks import CLOCKS
from nightingale.engine.session import LATE_S
from nightingale.engine.snapshot import EngineSnapshot, StreamSnapshot
from nightingale.engine.stream_capacity import Capacity, Demand

TIME_SHARE: Final = 0.5
"""The share of the time until a deadline that blocks are planned for."""
HOLD_MARGIN: Final = 1.6
"""Work is expected to take this much longer than the measured rate says."""
FIRST_BLOCK_S: Final = 0.3
"""Audio of the first block of a stream that has not started."""
RESERVE_S: Final = 0.4
"""Audio that a listener should always have: its next block takes up to half of it, and other programs the rest."""
LEAST_LEFT_S: Final = 0.3
"""Audio that a request which has not ended is expected to make still, at the least."""


def tokens_in_time(request: int, snapshot: EngineSnapshot, rate: float | None) -> float:
    """Return how many tokens the next block of a request may have.

    With blocks of this size, all streams get their next block before their deadlines if they are served in
    that order, after the blocks that are being rendered.
    """
    stream, now_s = snapshot.streams[request], snapshot.now_s
    streams = snapshot.streams.values()
    speaking = [one for one in streams if one.is_rendering]
    # Unknown: as if it were just enough. Blocks are small then.
    rate = rate or float(len(speaking))
    begin_s = now_s + sum(one.in_flight_s for one in streams) / rate
    others = sorted(one.deadline_s(now_s) for one in speaking if one is not stream and not one.is_new)
    per_block_s = min(
        ((at_s - begin_s) / blocks for blocks, at_s in enumerate(others, start=2)), default=math.inf
    )
    if not stream.is_new:
        per_block_s = min(per_block_s, stream.deadline_s(now_s) - begin_s)
    return max(0.0, TIME_SHARE * rate * per_block_s * CLOCKS.token_rate_hz)


def in_order(ready: Sequence[int], snapshot: EngineSnapshot, rate: float | None) -> list[int]:
    """Sort requests whose next blocks are ready by their deadlines.

    A stream that has not started has nothing to lose yet: for a while it does not go before one that it would make
    late, or that is.
    """
    streams, now_s = snapshot.streams, snapshot.now_s
    order = sorted(ready, key=snapshot.deadline_s)
    started = [request for request in order if not streams[request].is_new]
    if rate is None or not started or not streams[order[0]].is_new:
        return order
    first, second = streams[order[0]], streams[started[0]]
    work_s = sum(one.in_flight_s for one in streams.values()) + first.next_block_s + second.next_block_s
    is_late = first.admitted_s is not None and now_s > first.admitted_s + LATE_S
    if is_late or now_s + work_s / rate <= second.deadline_s(now_s):
        return order
    return [started[0], *(request for request in order if request != started[0])]


def hold_s(request: int, first_s: float, snapshot: EngineSnapshot, rate: float | None) -> float:
    """Return how long to keep the first `first_s` seconds of audio, so that the second block follows in time.

    Before that block, the first blocks of streams that start now are rendered, and blocks with earlier deadlines.
    """
    stream, now_s = snapshot.streams[request], snapshot.now_s
    if rate is None or not stream.is_rendering:
        return 0.0
    streams, own_s = snapshot.streams.values(), stream.deadline_s(now_s)
    work_s = sum(one.in_flight_s for one in streams)
    work_s += sum(
        one.next_block_s or FIRST_BLOCK_S
        for one in streams
        if one is not stream and not one.is_parked and _goes_before(one, own_s, now_s)
    )
    work_s += 0.0 if stream.in_flight_s else stream.next_block_s
    return max(0.0, HOLD_MARGIN * work_s / rate - first_s)


def _goes_before(one: StreamSnapshot, deadline_s: float, now_s: float) -> bool:
    return one.is_new or (one.has_utterance and one.deadline_s(now_s) <= deadline_s)


def left_s(stream: StreamSnapshot, capacity: Capacity) -> float:
    """Return how much audio a request is expected to make still; infinite while its text arrives."""
    if stream.chars is None:
        return math.inf
    return max(LEAST_LEFT_S, stream.chars / capacity.chars_per_s - stream.made_s)


def demands(snapshot: EngineSnapshot, capacity: Capacity) -> list[Demand]:
    """Return what the streams that have started will need."""
    now_s = snapshot.now_s
    return [
        Demand(_buffered_s(stream, now_s), left_s(stream, capacity))
        for stream in snapshot.streams.values()
        if stream.has_started and not stream.is_parked
    ]


def _buffered_s(stream: StreamSnapshot, now_s: float) -> float:
    """Return how long the listener can play, without the reserve."""
    starts_s = max(now_s, stream.held_until_s) if stream.held_s else 0.0
    return max(0.0, max(stream.plays_until_s, starts_s) + stream.held_s - now_s - RESERVE_S)
