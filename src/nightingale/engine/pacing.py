"""Keep concurrent streams in time: what is decoded and rendered next, and when first audio is handed out.

The methods decide from a snapshot; the worker carries their decisions out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nightingale.backends.base import Renderer
from nightingale.engine.deadlines import hold_s, in_order, tokens_in_time
from nightingale.engine.rendering.utterance import BlockLimits
from nightingale.engine.snapshot import EngineSnapshot
from nightingale.engine.stream_capacity import Capacity

AHEAD_TOKENS: Final = 9
"""Tokens beyond its next block up to which a competing stream joins decode steps."""
IN_FLIGHT: Final = 2
"""`render` calls that may be outstanding where streams compete: more would keep an urgent block waiting."""


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
        """Sort requests whose next blocks are ready: the first one is rendered next."""
        return in_order(ready, snapshot, self._capacity.rate)

    def block_limits(self, request: int, snapshot: EngineSnapshot) -> BlockLimits:
        """Return how large the blocks of a request may be."""
        limits = BlockLimits(concurrent=snapshot.is_concurrent)
        if not snapshot.streams[request].plays:
            return limits
        return limits._replace(tokens_in_time=tokens_in_time(request, snapshot, self._capacity.rate))

    def hold_s(self, request: int, audio_s: float, snapshot: EngineSnapshot) -> float:
        """Return how long to keep so much audio of a first block, so that the second one follows in time."""
        if not self._competing or not snapshot.is_concurrent:
            return 0.0
        return hold_s(request, audio_s, snapshot, self._capacity.rate)
