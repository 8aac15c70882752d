"""Admission of waiting requests: the next one to start, and the wait of the others.

The caller holds the worker's lock, if nothing else is said.
"""

from __future__ import annotations

import threading
from typing import Final

from nightingale.backends.profiles import Profile
from nightingale.decoding.kv_budget import KVBudget
from nightingale.engine.deadlines import deadline_s, demands, left_s
from nightingale.engine.requests.job import Job
from nightingale.engine.scheduler import Scheduler
from nightingale.engine.stream_capacity import Capacity, known_wait_s
from nightingale.errors import QueueFull

TYPICAL_S: Final = 4.0
"""Audio of a request that has not arrived yet, for estimates."""


class Admission:
    """The queue of a worker's scheduler, ordered by deadlines and limited by capacity."""

    def __init__(
        self,
        scheduler: Scheduler,
        jobs: dict[int, Job],
        capacity: Capacity,
        profile: Profile,
        most_starting: int | None,
    ) -> None:
        """most_starting: streams that may wait for their first blocks at the same time; None: any number."""
        self._scheduler, self._jobs, self._capacity, self._profile = scheduler, jobs, capacity, profile
        self._most_starting = most_starting

    def submit(self, request: int) -> None:
        """Queue a new request; raise QueueFull if too many are waiting or stalled."""
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
            first = self._new_requests()[:1]
            error.retry_after_s = known_wait_s(self._wait_s([], *first))
            raise

    def can_admit(self) -> bool:
        """Put the request with the earliest deadline first in the queue; return whether it can start.

        Running streams come back for their next segments. If new ones must wait, these do not.
        """
        scheduler, jobs = self._scheduler, self._jobs
        if not scheduler.can_admit:
            return False
        new = self._new_requests()
        held = set(new) if new and self._is_full(jobs[new[0]]) else ()
        free = [request for request in scheduler.waiting if request not in held]
        if not free:
            return False
        first = min(free, key=lambda request: deadline_s(jobs[request]))
        scheduler.waiting.remove(first)
        scheduler.waiting.appendleft(first)
        return scheduler.can_admit

    def admit(self, lock: threading.Condition, kv_budget: KVBudget) -> tuple[int, int] | None:
        """Give the next request a slot and return both; None if it must wait. The caller does not hold the lock."""
        scheduler = self._scheduler
        with lock:
            if not self.can_admit():
                return None
            first = scheduler.waiting[0]
        if scheduler.budget_bytes and first not in scheduler.needs_bytes:
            # Not under the lock: text is segmented here.
            scheduler.needs_bytes[first] = self._jobs[first].reserved_bytes(kv_budget)
        with lock:
            return scheduler.admit()

    def wait_s(self, request: int | None = None) -> float:
        """Estimate the time until a request starts, or one that would arrive now."""
        new = self._new_requests()
        if request is not None and request not in new:
            return 0.0
        return self._wait_s(new if request is None else new[: new.index(request)], request)

    def _wait_s(self, before: list[int], request: int | None = None) -> float:
        """Estimate when a request starts that has these ones before it; by default one of typical length."""
        lengths_s = [left_s(self._jobs[one], self._capacity) for one in before]
        lengths_s.append(TYPICAL_S if request is None else left_s(self._jobs[request], self._capacity))
        running = demands(self._jobs.values(), self._capacity)
        return self._capacity.waits_s(running, lengths_s, slots=self._scheduler.slots)[-1]

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
