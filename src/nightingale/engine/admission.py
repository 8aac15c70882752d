"""Admission of waiting requests: the next one to start, and the places and waits of the others.

The lock is the worker's, and reentrant.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from nightingale.backends.profiles import Profile
from nightingale.engine.deadlines import deadline_s, demands, left_s
from nightingale.engine.requests.job import Job
from nightingale.engine.scheduler import Scheduler
from nightingale.engine.stream_capacity import Capacity, QueuePlace, known_wait_s
from nightingale.errors import QueueFull

TYPICAL_S: Final = 4.0
"""Audio of a request that has not arrived yet, for estimates."""
ESTIMATE_AGE_S: Final = 2.0
"""Estimates of an unchanged queue are used for this long: one takes up to tens of milliseconds."""


class Admission:
    """The queue of a worker's scheduler, ordered by deadlines and limited by capacity."""

    def __init__(
        self,
        scheduler: Scheduler,
        jobs: dict[int, Job],
        capacity: Capacity,
        profile: Profile,
        most_starting: int | None,
        lock: threading.Condition,
    ) -> None:
        """most_starting: streams that may wait for their first blocks at the same time; None: any number."""
        self._scheduler, self._jobs, self._capacity, self._profile = scheduler, jobs, capacity, profile
        self._most_starting, self._lock = most_starting, lock
        self._estimated: tuple[list[int], float, list[float]] = ([], float("-inf"), [])
        """The last estimate: for which requests, when, and their waits."""

    def submit(self, request: int) -> None:
        """Queue a new request; raise QueueFull if too many are waiting or stalled. The caller holds the lock."""
        stalled = sum(job.parked and job.segment is not None for job in self._jobs.values())
        if stalled >= self._profile.stalled_limit:  # each holds buffered audio
            raise QueueFull(
                "too many stalled listeners do not read their audio",
                got=f"{stalled} of them, each {self._profile.ahead_seconds:g} s behind or more",
                allowed=f"at most {self._profile.stalled_limit}",
                fix="Read or close the streams that are open, then try again.",
            )
        try:
            self._scheduler.submit(request)
        except QueueFull as error:
            new = self._new_requests()
            waits_s = self._waits_s(new)
            error.retry_after_s, error.wait_s = known_wait_s(waits_s[0]), known_wait_s(waits_s[-1])
            error.position = len(new) + 1
            raise

    def can_admit(self) -> bool:
        """Put the request with the earliest deadline first in the queue; return whether it can start.

        The caller holds the lock.
        """
        scheduler, first = self._scheduler, self._first()
        if first is None:
            return False
        scheduler.waiting.remove(first)
        scheduler.waiting.appendleft(first)
        return scheduler.can_admit

    def _first(self) -> int | None:
        """Return the request with the earliest deadline among those that may start.

        Running streams come back for their next segments. If new ones must wait, these do not.
        """
        scheduler, jobs = self._scheduler, self._jobs
        if not scheduler.can_admit:
            return None
        new = self._new_requests()
        held = set(new) if new and self._is_full(jobs[new[0]]) else ()
        free = [request for request in scheduler.waiting if request not in held]
        return min(free, key=lambda request: deadline_s(jobs[request]), default=None)

    def admit(self) -> tuple[int, int] | None:
        """Give the next request a slot and return both; None if it must wait. The caller does not hold the lock."""
        with self._lock:
            return self._scheduler.admit() if self.can_admit() else None

    def wait_s(self) -> float:
        """Estimate the seconds until a request that would arrive now starts."""
        with self._lock:
            return self._waits_s(self._new_requests())[-1]

    def position(self, request: int) -> int:
        """Return the position of a request among those that have not started; 0 if it has or starts now."""
        with self._lock:
            new = self._new_requests()
            return 0 if request not in new or request == self._first() else new.index(request) + 1

    def place(self, request: int) -> QueuePlace | None:
        """Return the position of a request and its estimated wait; None if it has started or starts now."""
        with self._lock:
            position = self.position(request)
            waits_s = self._waits_s(self._new_requests()) if position else []
            return QueuePlace(position, known_wait_s(waits_s[position - 1])) if position else None

    def _waits_s(self, new: list[int]) -> list[float]:
        """Estimate when each of these requests starts, and at the end one that would arrive now."""
        now_s, (estimated, at_s, waits_s) = time.perf_counter(), self._estimated
        if new != estimated or now_s - at_s > ESTIMATE_AGE_S:
            lengths_s = [*(left_s(self._jobs[one], self._capacity) for one in new), TYPICAL_S]
            running = demands(self._jobs.values(), self._capacity)
            waits_s = self._capacity.waits_s(running, lengths_s, slots=self._scheduler.slots)
            at_s, self._estimated = now_s, (new, now_s, waits_s)
        return [max(0.0, wait_s - (now_s - at_s)) for wait_s in waits_s]

    def _is_full(self, first: Job) -> bool:
        """Return whether new streams, of which this is the first, must wait: others would have underruns."""
        jobs, capacity = self._jobs, self._capacity
        plays = first.session.plays or any(job.session.plays for job in jobs.values() if job.started)
        if capacity.max_streams == "auto" and not (plays and self._profile.batched):
            return False
        starting = sum(jobs[request].is_new for request in self._scheduler.running)
        if self._most_starting is not None and starting >= self._most_starting:
            return True
        return not capacity.admits(demands(jobs.values(), capacity), left_s(first, capacity))

    def _new_requests(self) -> list[int]:
        """Return the requests that have not started, in order of arrival."""
        return sorted(request for request in self._scheduler.waiting if not self._jobs[request].started)
