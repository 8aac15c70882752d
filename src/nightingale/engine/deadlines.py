"""Playback deadlines of requests: who is served first, and how large the blocks may be.

A listener's deadline is the moment when it runs out of audio. Blocks are rendered in the order of deadlines
(earliest deadline first).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Final

from nightingale.clocks import CLOCKS
from nightingale.engine.capacity import Capacity, Demand
from nightingale.engine.requests.job import Job

TIME_SHARE: Final = 0.8
"""The share of the time until a deadline that blocks are planned for."""
LEAST_LEFT_S: Final = 0.3
"""Audio that a request which has not ended is expected to make still, at the least."""


def deadline_s(job: Job) -> float:
    """Return when the listener runs out of audio, including the audio that is being rendered."""
    timing = job.session.timing
    if timing.first_audio_s is None and job.in_flight_s:
        return max(timing.deadline_s, time.perf_counter()) + job.in_flight_s
    return timing.deadline_s + job.in_flight_s


def tokens_in_time(job: Job, jobs: Iterable[Job], rate: float | None) -> float:
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


def left_s(job: Job, capacity: Capacity) -> float:
    """Return how much audio a request is expected to make still; infinite while its text arrives."""
    if job.chars is None:
        return math.inf
    made_s = job.session.timing.samples / CLOCKS.sample_rate_hz + job.in_flight_s
    return max(LEAST_LEFT_S, job.chars / capacity.chars_per_s / job.session.request.speed - made_s)


def demands(jobs: Iterable[Job], capacity: Capacity) -> list[Demand]:
    """Return what the streams that have started will need."""
    now_s = time.perf_counter()
    return [
        Demand(max(0.0, deadline_s(job) - now_s), left_s(job, capacity))
        for job in jobs
        if job.started and not job.parked
    ]
