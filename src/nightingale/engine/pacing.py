"""Keep concurrent streams in time: what is decoded and rendered next, and when first audio is handed out."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from nightingale.backends.base import Renderer
from nightingale.clocks import CLOCKS
from nightingale.engine.deadlines import hold_s, in_order, tokens_in_time
from nightingale.engine.rendering.utterance import Utterance
from nightingale.engine.requests.job import BlockRow, Job
from nightingale.engine.stream_capacity import Capacity
from nightingale.types import Samples

AHEAD_TOKENS: Final = 9
"""Tokens beyond its next block up to which a competing stream joins decode steps."""
IN_FLIGHT: Final = 2
"""`render` calls that may be outstanding where streams compete: more would keep an urgent block waiting."""


class Pacing:
    """Decisions about a worker's requests, by their deadlines."""

    def __init__(
        self,
        jobs: dict[int, Job],
        lock: threading.Condition,
        capacity: Capacity,
        renderer: Renderer,
        *,
        competing: bool,
    ) -> None:
        """competing: T3 and the blocks of all streams take turns on the same cores."""
        self._jobs, self._lock, self._capacity, self._renderer = jobs, lock, capacity, renderer
        self._competing = competing

    @property
    def most_starting(self) -> int | None:
        """Streams that may wait for their first blocks at the same time; None: any number."""
        return 1 if self._competing else None

    def _snapshot(self) -> dict[int, Job]:
        with self._lock:
            return dict(self._jobs)

    def _is_concurrent(self) -> bool:
        return sum(not job.parked for job in self._snapshot().values()) > 1

    def rows_to_decode(self, rows: list[int], ready: Sequence[int]) -> list[int]:
        """Return which of the requests that could be decoded the next step advances.

        Competing streams get tokens as their next blocks need them, not sooner.
        """
        if not self._competing or not self._is_concurrent():
            return rows
        if all(request in ready for request in rows):
            return []
        return [r for r in rows if r not in ready or self._surplus_tokens(r) < AHEAD_TOKENS]

    def _surplus_tokens(self, request: int) -> int:
        utterance = self._jobs[request].utterance
        return 0 if utterance is None else utterance.surplus_tokens

    def batch_size(self, ordered: Sequence[int]) -> int:  # noqa: ARG002, for batches
        """Return how many of the blocks that are ready, in order, are rendered together."""
        return self._renderer.max_batch

    def may_render(self, ready: Sequence[int], in_flight: int, *, decoding: bool) -> bool:  # noqa: ARG002
        """Return whether blocks are rendered now, with so many `render` calls outstanding."""
        most = self._renderer.max_in_flight
        return in_flight < (min(most, IN_FLIGHT) if self._competing else most)

    def first_block_tokens(self, smallest: int) -> int:
        """Return the tokens of the first block of a stream that starts now."""
        return smallest

    def in_order(self, ready: Sequence[int]) -> list[int]:
        """Sort requests whose next blocks are ready: the first one is rendered next."""
        return in_order(ready, self._snapshot(), self._capacity.rate)

    def take_block(self, request: int) -> BlockRow:
        """Take the next block of a request, which must be ready."""
        job = self._jobs[request]
        utterance = job.utterance
        assert utterance is not None
        self.limit_block(job, utterance)
        block = utterance.take_block(job.session.timing)
        job.in_flight_s += len(block.tokens) / CLOCKS.token_rate_hz
        return BlockRow(request, utterance, block)

    def limit_block(self, job: Job, utterance: Utterance) -> None:
        """Tell an utterance how large its blocks may be."""
        utterance.concurrent = self._is_concurrent()
        if job.session.plays:
            utterance.tokens_in_time = tokens_in_time(job, self._snapshot().values(), self._capacity.rate)

    def pass_on(self, job: Job, audio: Samples, *, final: bool) -> None:
        """Hand out audio. A competing stream's first block is kept until the second can follow in time."""
        with self._lock:
            streams = sum(bool(one.started) and not one.parked for one in self._jobs.values())
            self._capacity.meter.add(len(audio), time.perf_counter(), streams=streams)
        competes = self._competing and job.session.plays and self._is_concurrent()
        if competes and job.is_silent and len(audio) and not final:
            jobs = self._snapshot().values()
            job.hold(audio, hold_s(job, len(audio) / CLOCKS.sample_rate_hz, jobs, self._capacity.rate))
        else:
            job.flush()
            job.session.put(audio)

    def rendered(self, blocks: int, started_s: float) -> None:
        """Improve the estimates by a batch of blocks that was rendered."""
        share = blocks / self._renderer.max_batch
        self._capacity.rendered(blocks, started_s, time.perf_counter(), share=share)

    def learn(self, job: Job) -> None:
        """Improve the estimates by a request that has ended."""
        timing, audio_s = job.session.timing, job.session.timing.samples / CLOCKS.sample_rate_hz
        if timing.admitted_s is not None and timing.first_audio_s is not None and audio_s:
            chars = None if job.chars is None else job.chars / job.session.request.speed
            self._capacity.learn(timing.first_audio_s - timing.admitted_s, chars, audio_s)

    def held_s(self) -> float | None:
        """Return the time until kept audio must be handed out; None if there is none."""
        times = [job.held_until_s for job in self._snapshot().values() if job.held]
        return max(0.0, min(times) - time.perf_counter()) if times else None
