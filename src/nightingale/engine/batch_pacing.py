"""Keep streams in time where a renderer takes large batches, as a GPU's does.

There a block costs about the same whatever its length, because each one is rendered with its voice's prompt, and
a full batch costs much less per block than a small one. So a block takes all tokens that are there, and what is
decided is which blocks share the next batch: as many first blocks as streams that play already can wait for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Final

from nightingale.clocks import CLOCKS
from nightingale.engine.deadlines import deadline_s
from nightingale.engine.pacing import Pacing
from nightingale.engine.rendering.utterance import Utterance
from nightingale.engine.requests.job import Job
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

    def rows_to_decode(self, rows: list[int], ready: Sequence[int]) -> list[int]:
        """Leave the GPU to blocks that a listener needs now: T3 beside a small batch makes it several times as long.

        These are blocks of a small batch, and first blocks that wait while all who play have enough audio.
        """
        jobs = self._snapshot()
        if len(jobs) > 1 and self._renders_urgently(jobs):
            return []
        if any(jobs[request].is_new for request in rows) or not any(
            jobs[request].is_new for request in ready
        ):
            return rows
        now_s, deadlines = time.perf_counter(), self._deadlines(jobs, time.perf_counter())
        enough_s = now_s + DECODE_S + 2 * self._renderer.max_batch * self._capacity.block_s
        return rows if any(deadlines[request] < enough_s for request in rows) else []

    def _renders_urgently(self, jobs: Mapping[int, Job]) -> bool:
        """Return whether a small batch is being rendered for a listener who has no audio, or not for long."""
        if self._capacity.whole_segments:
            return False
        rendered = [job for job in jobs.values() if job.in_flight_s]
        if len(rendered) >= LARGE_BATCH * self._renderer.max_batch:
            return False
        soon_s = time.perf_counter() + SOON_S
        return any(
            job.session.plays
            and (job.session.timing.first_audio_s is None or job.session.timing.deadline_s < soon_s)
            for job in rendered
        )

    def batch_size(self, ordered: Sequence[int]) -> int:
        """Leave blocks that can wait to a later batch while streams start, whose first blocks come sooner then."""
        jobs, size = self._snapshot(), self._renderer.max_batch
        new = sum(jobs[request].is_new for request in ordered)
        if new >= size or not self._starting(jobs, new):
            return size
        now_s = time.perf_counter()
        soon_s = self._free_s(jobs, now_s) + URGENT_BATCHES * size * MARGIN * self._capacity.block_s
        deadlines = self._deadlines(jobs, now_s)
        urgent = sum(deadlines[request] < soon_s for request in ordered if not jobs[request].is_new)
        return min(size, new + urgent)

    def _starting(self, jobs: Mapping[int, Job], ready: int) -> bool:
        """Return whether first blocks are being decoded, besides those that are ready."""
        return ready < sum(job.is_new and job.is_decoding for job in jobs.values())

    def may_render(self, ready: Sequence[int], in_flight: int, *, decoding: bool) -> bool:
        """Let a batch that is not full wait for blocks that are about to come, unless a listener would be late.

        These are the first blocks of streams that start now, and any others while a batch is being rendered.
        """
        since_s, self._waiting_since_s = self._waiting_since_s, math.inf
        count = min(len(ready), self.batch_size(ready))
        if not count:
            return False
        if count >= self._renderer.max_batch or not decoding:
            return in_flight < self._renderer.max_in_flight
        if in_flight:
            return False
        now_s, jobs = time.perf_counter(), self._snapshot()
        if self._can_all_wait(jobs, ready, now_s):
            return False
        starting = self._starting(jobs, count)
        if not starting or now_s >= since_s + WAIT_S or not self._in_time(jobs, 0, now_s + WAIT_S):
            return True
        self._waiting_since_s = min(since_s, now_s)
        return False

    def _can_all_wait(self, jobs: Mapping[int, Job], ready: Sequence[int], now_s: float) -> bool:
        """Return whether no block is needed soon: until then its tokens become more, and others join its batch."""
        deadlines = self._deadlines(jobs, now_s)
        playing = sum(_needs_more(job) for job in jobs.values())
        soon_s = now_s + SOON_S + MARGIN * self._capacity.batches_s(playing, self._renderer.max_batch)
        return all(
            jobs[request].session.plays and not jobs[request].is_new and deadlines[request] > soon_s
            for request in ready
        )

    def in_order(self, ready: Sequence[int]) -> list[int]:
        """Put as many first blocks in front as leave all streams that play in time, served by their deadlines."""
        jobs = self._snapshot()
        new = sorted((request for request in ready if jobs[request].is_new), key=lambda r: _opened_s(jobs[r]))
        now_s = time.perf_counter()
        deadlines = self._deadlines(jobs, now_s)
        started = sorted(set(ready) - set(new), key=lambda request: deadlines[request])
        first = min(len(new), self._renderer.max_batch)
        while first and not self._in_time(jobs, first, now_s):
            first -= 1
        return [*new[:first], *started, *new[first:]]

    def _in_time(self, jobs: Mapping[int, Job], first: int, start_s: float) -> bool:
        """Return whether all who play get their next blocks in time, if so many first blocks go before them."""
        deadlines, size = self._deadlines(jobs, start_s), self._renderer.max_batch
        playing = sorted(deadlines[request] for request, job in jobs.items() if _needs_more(job))
        free_s = self._free_s(jobs, start_s) + MARGIN * self._capacity.batches_s(first, size)
        for number, at_s in enumerate(playing, start=1):
            # Those of its batch, and of the batches before it.
            blocks = min(len(playing), -(-number // size) * size)
            if at_s < free_s + MARGIN * self._capacity.batches_s(blocks, size):
                return False
        return True

    def _free_s(self, jobs: Mapping[int, Job], now_s: float) -> float:
        """Return when the blocks that are being rendered will be ready."""
        in_flight = sum(bool(job.in_flight_s) for job in jobs.values())
        return now_s + MARGIN * self._capacity.batches_s(in_flight, self._renderer.max_batch)

    def _deadlines(self, jobs: Mapping[int, Job], now_s: float) -> dict[int, float]:
        """Return when listeners run out of audio; one whose first block is being rendered plays after that."""
        free_s = self._free_s(jobs, now_s)
        return {
            request: free_s + job.in_flight_s
            if job.session.timing.first_audio_s is None and job.in_flight_s
            else deadline_s(job)
            for request, job in jobs.items()
        }

    def first_block_tokens(self, smallest: int) -> int:
        """Return the tokens of the first block of a stream that starts now. Their audio lasts until its next tokens are
        decoded and rendered: after the first blocks of all streams that start now, and after batches that others
        have in flight. The next blocks of the others need not wait for many tokens any more."""
        playing = [job for job in self._snapshot().values() if job.session.plays]
        if len(playing) < 2:
            return smallest
        for job in playing:
            if job.utterance is not None and not job.is_new:
                job.utterance.shrink_next_block()
        size, new = self._renderer.max_batch, sum(job.is_new for job in playing)
        blocks = max(new + min(new, size), min(len(playing), (self._renderer.max_in_flight + 1) * size))
        wait_s = DECODE_S + MARGIN * self._capacity.batches_s(blocks, size)
        return max(smallest, min(math.ceil(wait_s * CLOCKS.token_rate_hz) + HELD_TOKENS, LARGEST_FIRST_BLOCK))

    def limit_block(self, job: Job, utterance: Utterance) -> None:
        utterance.concurrent = self._is_concurrent()
        utterance.takes_all = utterance.concurrent and job.session.plays and utterance.profile.in_blocks
        utterance.tokens_in_time = LARGEST_FIRST_BLOCK if job.is_new else math.inf


def _opened_s(job: Job) -> float:
    return job.session.timing.opened_s


def _needs_more(job: Job) -> bool:
    """Return whether a listener has begun and its audio has not all been given to the renderer."""
    if not job.session.plays or job.is_new or job.parked or job.utterance is None:
        return False
    return not job.utterance.rendered or job.segment is not None or not job.segments.closed
