"""Keep streams in time where a renderer takes large batches, as a GPU's does.

There a block costs about the same whatever its length, because each one is rendered with its voice's prompt, and
a full batch costs much less per block than a small one. So a block takes all tokens that are there, and what is
decided is which blocks share the next batch: as many first blocks as streams that play already can wait for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final

from nightingale.clocks import CLOCKS
from nightingale.engine.deadlines import deadline_s
from nightingale.engine.pacing import Pacing
from nightingale.engine.rendering.utterance import Utterance
from nightingale.engine.requests.job import Job

MARGIN: Final = 1.15
"""Rendering is expected to take this much longer than the measured time per block says."""
WAIT_S: Final = 0.1
"""The longest time that blocks wait for the first blocks of streams that start now, about."""
DECODE_S: Final = 0.3
"""Time for the tokens of the next blocks of all streams, about."""
LARGEST_FIRST_BLOCK: Final = 32
"""Tokens of a first block that others wait for, at most."""


class BatchPacing(Pacing):
    """Decisions about a worker's requests whose blocks are rendered in batches."""

    @property
    def most_starting(self) -> int | None:
        """Two batches: while one is rendered, the next one is decoded, and the first one does not wait for all."""
        return None if self._capacity.whole_segments else 2 * self._renderer.max_batch

    def rows_to_decode(self, rows: list[int], ready: Sequence[int]) -> list[int]:
        """Leave the GPU to first blocks that wait to be rendered, while all who play have enough audio."""
        jobs = self._snapshot()
        if any(jobs[request].is_new for request in rows) or not any(
            jobs[request].is_new for request in ready
        ):
            return rows
        enough_s = time.perf_counter() + DECODE_S + 2 * self._renderer.max_batch * self._capacity.block_s
        return rows if any(self._deadline_s(jobs[request]) < enough_s for request in rows) else []

    def may_render(self, ready: int, in_flight: int, *, decoding: bool) -> bool:
        """Let a batch that is not full wait for blocks that are about to come, unless a listener would be late.

        These are the first blocks of streams that start now, and any others while a batch is being rendered.
        """
        if ready >= self._renderer.max_batch or not decoding:
            return in_flight < self._renderer.max_in_flight
        jobs = self._snapshot().values()
        starting = ready < sum(job.is_new and job.is_decoding for job in jobs)
        if not (in_flight or starting):
            return True
        playing = sorted(self._deadline_s(job) - WAIT_S for job in jobs if _needs_more(job))
        return not in_flight and not self._in_time(playing, 0)

    def in_order(self, ready: Sequence[int]) -> list[int]:
        """Put as many first blocks in front as leave all streams that play in time, served by their deadlines."""
        jobs = self._snapshot()
        new = sorted((request for request in ready if jobs[request].is_new), key=lambda r: _opened_s(jobs[r]))
        started = sorted(set(ready) - set(new), key=lambda request: self._deadline_s(jobs[request]))
        first = min(len(new), self._renderer.max_batch) if new else 0
        playing = sorted(self._deadline_s(job) for job in jobs.values() if _needs_more(job))
        while first and not self._in_time(playing, first):
            first -= 1
        return [*new[:first], *started, *new[first:]]

    def _in_time(self, playing: Sequence[float], first: int) -> bool:
        """Return whether streams with these deadlines get their next blocks in time after so many first blocks."""
        size, count = self._renderer.max_batch, first + len(playing)
        for number, at_s in enumerate(playing, start=first + 1):
            blocks = min(count, -(-number // size) * size)  # those of its batch, and of the batches before it
            if at_s < self._after_s(blocks):
                return False
        return True

    def _after_s(self, blocks: int) -> float:
        """Return when so many blocks will be rendered, after those that are being rendered."""
        in_flight = sum(bool(job.in_flight_s) for job in self._jobs.values())
        return time.perf_counter() + MARGIN * (in_flight + blocks) * self._capacity.block_s

    def _deadline_s(self, job: Job) -> float:
        """Return when a listener runs out of audio; one whose first block is being rendered plays after that."""
        if job.session.timing.first_audio_s is None and job.in_flight_s:
            return self._after_s(0) + job.in_flight_s
        return deadline_s(job)

    def first_block_tokens(self, smallest: int) -> int:
        """Return the tokens of the first block of a stream that starts now: their audio lasts until the first blocks
        of all streams that start now are rendered, and a batch after them."""
        new = sum(job.is_new and job.session.plays for job in self._snapshot().values())
        blocks = new + min(new, self._renderer.max_batch)
        tokens = math.ceil(MARGIN * blocks * self._capacity.block_s * CLOCKS.token_rate_hz)
        return max(smallest, min(tokens, LARGEST_FIRST_BLOCK)) if new > 1 else smallest

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
