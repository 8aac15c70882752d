"""Playback deadlines of requests, and what follows from them and from the engine's rate.

A listener's deadline is the moment when it runs out of audio. Blocks are rendered in the order of deadlines
(earliest deadline first).
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from nightingale.clocks import CLOCKS
from nightingale.engine.requests.job import Job
from nightingale.engine.session import LATE_S
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


def deadline_s(job: Job) -> float:
    """Return when the listener runs out of audio, including the audio that is being rendered."""
    timing, made_s = job.session.timing, job.in_flight_s + job.held_s
    if timing.first_audio_s is None and made_s:
        return max(timing.deadline_s, time.perf_counter(), job.held_until_s) + made_s
    return timing.deadline_s + made_s


def tokens_in_time(job: Job, jobs: Collection[Job], rate: float | None) -> float:
    """Return how many tokens the next block of `job` may have.

    With blocks of this size, all streams get their next block before their deadlines if they are served in
    that order, after the blocks that are being rendered.
    """
    now_s = time.perf_counter()
    speaking = [one for one in jobs if one.utterance is not None and not one.utterance.rendered]
    # Unknown: as if it were just enough. Blocks are small then.
    rate = rate or float(len(speaking))
    begin_s = now_s + sum(one.in_flight_s for one in jobs) / rate
    others = sorted(deadline_s(one) for one in speaking if one is not job and not one.is_new)
    per_block_s = min(
        ((at_s - begin_s) / blocks for blocks, at_s in enumerate(others, start=2)), default=math.inf
    )
    if not job.is_new:
        per_block_s = min(per_block_s, deadline_s(job) - begin_s)
    return max(0.0, TIME_SHARE * rate * per_block_s * CLOCKS.token_rate_hz)


def in_order(ready: Sequence[int], jobs: Mapping[int, Job], rate: float | None) -> list[int]:
    """Sort requests whose next blocks are ready by their deadlines.

    A stream that has not started has nothing to lose yet: for a while it does not go before one that it would make
    late, or that is.
    """
    order = sorted(ready, key=lambda request: deadline_s(jobs[request]))
    started = [request for request in order if not jobs[request].is_new]
    if rate is None or not started or not jobs[order[0]].is_new:
        return order
    first, second = jobs[order[0]], jobs[started[0]]
    now_s, admitted_s = time.perf_counter(), first.session.timing.admitted_s
    work_s = sum(one.in_flight_s for one in jobs.values()) + next_block_s(first) + next_block_s(second)
    if now_s + work_s / rate <= deadline_s(second) or (admitted_s and now_s > admitted_s + LATE_S):
        return order
    return [started[0], *(request for request in order if request != started[0])]


def hold_s(job: Job, first_s: float, jobs: Collection[Job], rate: float | None) -> float:
    """Return how long to keep the first `first_s` seconds of audio, so that the second block follows in time.

    Before that block, the first blocks of streams that start now are rendered, and blocks with earlier deadlines.
    """
    if rate is None or job.utterance is None or job.utterance.rendered:
        return 0.0
    own_s = deadline_s(job)
    before = [
        one
        for one in jobs
        if one is not job and not one.parked and (one.is_new or (one.utterance and deadline_s(one) <= own_s))
    ]
    work_s = sum(one.in_flight_s for one in jobs)
    work_s += sum(next_block_s(one) or FIRST_BLOCK_S for one in before)
    work_s += 0.0 if job.in_flight_s else next_block_s(job)
    return max(0.0, HOLD_MARGIN * work_s / rate - first_s)


def next_block_s(job: Job) -> float:
    """Return the seconds of audio of the smallest block that the request may have next."""
    return job.utterance.least_block_tokens / CLOCKS.token_rate_hz if job.utterance else 0.0


def left_s(job: Job, capacity: Capacity) -> float:
    """Return how much audio a request is expected to make still; infinite while its text arrives."""
    if job.chars is None:
        return math.inf
    made_s = job.session.timing.samples / CLOCKS.sample_rate_hz + job.held_s
    expected_s = job.chars / capacity.chars_per_s / job.session.request.speed
    return max(LEAST_LEFT_S, expected_s - made_s)


def demands(jobs: Iterable[Job], capacity: Capacity) -> list[Demand]:
    """Return what the streams that have started will need."""
    now_s = time.perf_counter()

    def buffered_s(job: Job) -> float:
        starts_s = max(now_s, job.held_until_s) if job.held_s else 0.0
        return max(0.0, max(job.session.timing.deadline_s, starts_s) + job.held_s - now_s - RESERVE_S)

    return [Demand(buffered_s(job), left_s(job, capacity)) for job in jobs if job.started and not job.parked]
