"""Keep concurrent streams in time: what is decoded and rendered next, and when first audio is handed out.

A listener's deadline is the moment when it runs out of audio. Blocks are rendered in the order of deadlines (earliest
deadline first). The methods decide from a snapshot; the worker carries their decisions out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from nightingale.backends.base import Renderer
from nightingale.clocks import CLOCKS
from nightingale.engine.rendering.utterance import BlockLimits
from nightingale.engine.session import LATE_S
from nightingale.engine.snapshot import EngineSnapshot
from nightingale.engine.stream_capacity import Capacity

AHEAD_TOKENS: Final = 9
"""Tokens beyond its next block up to which a competing stream joins decode steps."""
IN_FLIGHT: Final = 2
"""`render` calls that may be outstanding where streams compete: more would keep an urgent block waiting."""
TIME_SHARE: Final = 0.5
"""The share of the time until a deadline that blocks are planned for."""
HOLD_MARGIN: Final = 1.6
"""Work is expected to take this much longer than the measured rate says."""
FIRST_BLOCK_S: Final = 0.3
"""Audio of the first block of a stream that has not started."""


class Pacing:
    """Decisions about a worker's requests, by their deadlines."""

    def __init__(self, capacity: Capacity, renderer: Renderer, *, competing: bool) -> None:
        """competing: T3 and the blocks of all streams take turns on the same cores."""
        self._capacity = capacity
        self._renderer = renderer
        self._competing = competing

    @property
    def most_starting(self) -> int | None:
        """Streams that may wait for their first blocks at the same time; None: any number."""
        return 1 if self._competing else None

    def rows_to_decode(self, rows: list[int], ready: Sequence[int], snapshot: EngineSnapshot) -> list[int]:
        """Return which of the requests that could be decoded the next step advances.

        Competing streams get tokens as their next blocks need them, not sooner.
        """
        if not self._competing or not snapshot.is_concurrent:
            return rows
        if all(request in ready for request in rows):
            return []
        streams = snapshot.streams
        return [r for r in rows if r not in ready or streams[r].surplus_tokens < AHEAD_TOKENS]

    def batch_size(self, ordered: Sequence[int], snapshot: EngineSnapshot) -> int:  # noqa: ARG002, for batches
        """Return how many of the blocks that are ready, in order, are rendered together."""
        return self._renderer.max_batch

    def may_render(
        self,
        ready: Sequence[int],  # noqa: ARG002, for batches
        in_flight: int,
        snapshot: EngineSnapshot,  # noqa: ARG002, for batches
        *,
        decoding: bool,  # noqa: ARG002, for batches
    ) -> bool:
        """Return whether blocks are rendered now, with so many `render` calls outstanding."""
        most = self._renderer.max_in_flight
        return in_flight < (min(most, IN_FLIGHT) if self._competing else most)

    def first_block_tokens(self, smallest: int, snapshot: EngineSnapshot) -> int:  # noqa: ARG002, for batches
        """Return the tokens of the first block of a stream that starts now."""
        return smallest

    def blocks_to_shrink(self, snapshot: EngineSnapshot) -> list[int]:  # noqa: ARG002, for batches
        """Return the requests whose next blocks are as small as possible because a stream starts now."""
        return []

    def in_order(self, ready: Sequence[int], snapshot: EngineSnapshot) -> list[int]:
        """Sort requests whose next blocks are ready by their deadlines: the first one is rendered next.

        A stream that has not started has nothing to lose yet: for a while it does not go before one that it would
        make late, or that is.
        """
        streams, now_s, rate = snapshot.streams, snapshot.now_s, self._capacity.rate
        order = sorted(ready, key=snapshot.deadline_s)
        started = [request for request in order if not streams[request].is_new]
        if rate is None or not started or not streams[order[0]].is_new:
            return order
        first, second = streams[order[0]], streams[started[0]]
        work_s = snapshot.in_flight_s + first.next_block_s + second.next_block_s
        is_late = first.admitted_s is not None and now_s > first.admitted_s + LATE_S
        if is_late or now_s + work_s / rate <= second.deadline_s(now_s):
            return order
        return [started[0], *(request for request in order if request != started[0])]

    def block_limits(self, request: int, snapshot: EngineSnapshot) -> BlockLimits:
        """Return how large the next block of a request may be.

        With blocks of this size, all streams get their next block before their deadlines if they are served in
        that order, after the blocks that are being rendered.
        """
        stream, now_s = snapshot.streams[request], snapshot.now_s
        limits = BlockLimits(concurrent=snapshot.is_concurrent)
        if not stream.plays:
            return limits
        speaking = [one for one in snapshot.streams.values() if one.is_rendering]
        # An unknown rate is as if it were just enough. Blocks are small then.
        rate = self._capacity.rate or float(len(speaking))
        begin_s = now_s + snapshot.in_flight_s / rate
        others = sorted(one.deadline_s(now_s) for one in speaking if one is not stream and not one.is_new)
        waits_s = [(at_s - begin_s) / blocks for blocks, at_s in enumerate(others, start=2)]
        if not stream.is_new:
            waits_s.append(stream.deadline_s(now_s) - begin_s)
        tokens = TIME_SHARE * rate * min(waits_s, default=math.inf) * CLOCKS.token_rate_hz
        return limits._replace(tokens_in_time=max(0.0, tokens))

    def hold_s(self, request: int, first_s: float, snapshot: EngineSnapshot) -> float:
        """Return how long to keep the first `first_s` seconds of audio, so that the second block follows in time.

        Before that block, the first blocks of streams that start now are rendered, and blocks with earlier deadlines.
        """
        stream, now_s, rate = snapshot.streams[request], snapshot.now_s, self._capacity.rate
        if not (self._competing and snapshot.is_concurrent and stream.is_rendering) or rate is None:
            return 0.0
        own_s = stream.deadline_s(now_s)
        work_s = snapshot.in_flight_s + sum(
            one.next_block_s or FIRST_BLOCK_S
            for one in snapshot.streams.values()
            if one is not stream
            and not one.is_parked
            and (one.is_new or (one.has_utterance and one.deadline_s(now_s) <= own_s))
        )
        work_s += 0.0 if stream.in_flight_s else stream.next_block_s
        return max(0.0, HOLD_MARGIN * work_s / rate - first_s)
