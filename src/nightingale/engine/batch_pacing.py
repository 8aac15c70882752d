"""Keep streams in time where a renderer takes large batches, as a GPU's does.

There a block costs about the same whatever its length, because each one is rendered with its voice's prompt, and
a full batch costs much less per block than a small one. So a block takes all tokens that are there, and what is
decided is which blocks share the next batch: as many first blocks as streams that play already can wait for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from nightingale.clocks import CLOCKS
from nightingale.engine.pacing import Pacing
from nightingale.engine.rendering.utterance import BlockLimits
from nightingale.engine.snapshot import EngineSnapshot
from nightingale.engine.stream_capacity import LARGE_BATCH

MARGIN: Final = 1.15
"""Rendering is expected to take this much longer than the measured time per block says."""
WAIT_S: Final = 0.1
"""The longest time that blocks wait for the first blocks of streams that start now."""
URGENT_BATCHES: Final = 2
"""A block is urgent if its listener would have nothing to play after so many full batches."""
DECODE_S: Final = 0.3
"""Time for the tokens of the next blocks of all streams, about."""
SOON_S: Final = 0.25
"""A listener whose audio ends so soon needs its next block now."""
HELD_TOKENS: Final = 2
"""Tokens of a block, about, whose audio is given out with the next one."""
LARGEST_FIRST_BLOCK: Final = 32 + HELD_TOKENS
"""Tokens of a first block that others wait for, at most."""


class BatchPacing(Pacing):
    """Decisions about a worker's requests whose blocks are rendered in batches."""

    _waiting_since_s = math.inf
    """The time since when a batch that is not full waits."""

    @property
    def most_starting(self) -> int | None:
        """Two batches: while one is rendered, the next one is decoded, and the first one does not wait for all."""
        return None if self._capacity.whole_segments else 2 * self._renderer.max_batch

    def rows_to_decode(self, rows: list[int], ready: Sequence[int], snapshot: EngineSnapshot) -> list[int]:
        """Leave the GPU to blocks that a listener needs now: T3 beside a small batch makes it several times as long.

        These are blocks of a small batch, and first blocks that wait while all who play have enough audio.
        """
        streams = snapshot.streams
        if len(streams) > 1 and self._renders_urgently(snapshot):
            return []
        if any(streams[request].is_new for request in rows) or not any(
            streams[request].is_new for request in ready
        ):
            return rows
        deadlines = self._deadlines(snapshot, snapshot.now_s)
        enough_s = snapshot.now_s + DECODE_S + 2 * self._renderer.max_batch * self._capacity.block_s
        return rows if any(deadlines[request] < enough_s for request in rows) else []

    def _renders_urgently(self, snapshot: EngineSnapshot) -> bool:
        """Return whether a small batch is being rendered for a listener who has no audio, or not for long."""
        if self._capacity.whole_segments:
            return False
        rendered = [stream for stream in snapshot.streams.values() if stream.in_flight_s]
        if len(rendered) >= LARGE_BATCH * self._renderer.max_batch:
            return False
        soon_s = snapshot.now_s + SOON_S
        return any(
            stream.plays and (not stream.has_audio or stream.plays_until_s < soon_s) for stream in rendered
        )

    def batch_size(self, ordered: Sequence[int], snapshot: EngineSnapshot) -> int:
        """Leave blocks that can wait to a later batch while streams start, whose first blocks come sooner then."""
        streams, size, now_s = snapshot.streams, self._renderer.max_batch, snapshot.now_s
        new = sum(streams[request].is_new for request in ordered)
        if new >= size or not self._starting(snapshot, new):
            return size
        soon_s = self._free_s(snapshot, now_s) + URGENT_BATCHES * size * MARGIN * self._capacity.block_s
        deadlines = self._deadlines(snapshot, now_s)
        urgent = sum(deadlines[request] < soon_s for request in ordered if not streams[request].is_new)
        return min(size, new + urgent)

    def _starting(self, snapshot: EngineSnapshot, ready: int) -> bool:
        """Return whether first blocks are being decoded, besides those that are ready."""
        return ready < sum(stream.is_new and stream.is_decoding for stream in snapshot.streams.values())

    def may_render(
        self, ready: Sequence[int], in_flight: int, snapshot: EngineSnapshot, *, decoding: bool
    ) -> bool:
        """Let a batch that is not full wait for blocks that are about to come, unless a listener would be late.

        These are the first blocks of streams that start now, and any others while a batch is being rendered.
        """
        since_s = self._waiting_since_s
        self._waiting_since_s = math.inf
        count = min(len(ready), self.batch_size(ready, snapshot))
        if not count:
            return False
        if count >= self._renderer.max_batch or not decoding:
            return in_flight < self._renderer.max_in_flight
        if in_flight:
            return False
        now_s = snapshot.now_s
        if self._can_all_wait(snapshot, ready):
            return False
        starting = self._starting(snapshot, count)
        if not starting or now_s >= since_s + WAIT_S or not self._in_time(snapshot, 0, now_s + WAIT_S):
            return True
        self._waiting_since_s = min(since_s, now_s)
        return False

    def _can_all_wait(self, snapshot: EngineSnapshot, ready: Sequence[int]) -> bool:
        """Return whether no block is needed soon: until then its tokens become more, and others join its batch."""
        streams, now_s = snapshot.streams, snapshot.now_s
        deadlines = self._deadlines(snapshot, now_s)
        playing = sum(stream.needs_more for stream in streams.values())
        soon_s = now_s + SOON_S + MARGIN * self._capacity.batches_s(playing, self._renderer.max_batch)
        return all(
            streams[request].plays and not streams[request].is_new and deadlines[request] > soon_s
            for request in ready
        )

    def in_order(self, ready: Sequence[int], snapshot: EngineSnapshot) -> list[int]:
        """Put as many first blocks in front as leave all streams that play in time, served by their deadlines."""
        streams, now_s = snapshot.streams, snapshot.now_s
        new = sorted((r for r in ready if streams[r].is_new), key=lambda request: streams[request].opened_s)
        deadlines = self._deadlines(snapshot, now_s)
        started = sorted(set(ready) - set(new), key=lambda request: deadlines[request])
        first = min(len(new), self._renderer.max_batch)
        while first and not self._in_time(snapshot, first, now_s):
            first -= 1
        return [*new[:first], *started, *new[first:]]

    def _in_time(self, snapshot: EngineSnapshot, first: int, start_s: float) -> bool:
        """Return whether all who play get their next blocks in time, if so many first blocks go before them."""
        deadlines, size = self._deadlines(snapshot, start_s), self._renderer.max_batch
        playing = sorted(
            deadlines[request] for request, stream in snapshot.streams.items() if stream.needs_more
        )
        free_s = self._free_s(snapshot, start_s) + MARGIN * self._capacity.batches_s(first, size)
        for number, at_s in enumerate(playing, start=1):
            # Those of its batch, and of the batches before it.
            blocks = min(len(playing), -(-number // size) * size)
            if at_s < free_s + MARGIN * self._capacity.batches_s(blocks, size):
                return False
        return True

    def _free_s(self, snapshot: EngineSnapshot, start_s: float) -> float:
        """Return when the blocks that are being rendered will be ready, if they begin at `start_s`."""
        in_flight = sum(bool(stream.in_flight_s) for stream in snapshot.streams.values())
        return start_s + MARGIN * self._capacity.batches_s(in_flight, self._renderer.max_batch)

    def _deadlines(self, snapshot: EngineSnapshot, start_s: float) -> dict[int, float]:
        """Return when listeners run out of audio; one whose first block is being rendered plays after that."""
        free_s = self._free_s(snapshot, start_s)
        return {
            request: free_s + stream.in_flight_s
            if not stream.has_audio and stream.in_flight_s
            else stream.deadline_s(snapshot.now_s)
            for request, stream in snapshot.streams.items()
        }

    def first_block_tokens(self, smallest: int, snapshot: EngineSnapshot) -> int:
        """Return the tokens of the first block of a stream that starts now.

        Their audio lasts until its next tokens are decoded and rendered: after the first blocks of all streams that
        start now, and after batches that others have in flight.
        """
        playing = [stream for stream in snapshot.streams.values() if stream.plays]
        if len(playing) < 2:
            return smallest
        size, new = self._renderer.max_batch, sum(stream.is_new for stream in playing)
        blocks = max(new + min(new, size), min(len(playing), (self._renderer.max_in_flight + 1) * size))
        wait_s = DECODE_S + MARGIN * self._capacity.batches_s(blocks, size)
        return max(smallest, min(math.ceil(wait_s * CLOCKS.token_rate_hz) + HELD_TOKENS, LARGEST_FIRST_BLOCK))

    def blocks_to_shrink(self, snapshot: EngineSnapshot) -> list[int]:
        """Return the streams that play already: their next blocks need not wait for many tokens any more."""
        return [
            request
            for request, stream in snapshot.streams.items()
            if stream.plays and stream.has_utterance and not stream.is_new
        ]

    def block_limits(self, request: int, snapshot: EngineSnapshot) -> BlockLimits:
        """Let a block take all tokens that are there, unless its request runs alone."""
        stream, concurrent = snapshot.streams[request], snapshot.is_concurrent
        takes_all = concurrent and stream.plays and not self._capacity.whole_segments
        return BlockLimits(concurrent, takes_all, LARGEST_FIRST_BLOCK if stream.is_new else math.inf)
