"""Which waiting request starts next, and how long the others wait. The caller holds the worker's lock."""

from __future__ import annotations

from collections import deque
from typing import Final

from nightingale.backends.profiles import Profile
from nightingale.engine.capacity import Capacity, known_wait_s
from nightingale.engine.deadlines import deadline_s, demands, left_s
from nightingale.engine.requests.job import Job
from nightingale.engine.scheduler import Scheduler
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
        *,
        staggered: bool,
    ) -> None:
        """staggered: each stream starts after the first block of the one before it."""
        self._scheduler, self._jobs, self._capacity, self._profile = scheduler, jobs, capacity, profile
        self._staggered = staggered

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
            error.retry_after_s = known_wait_s(self.waits_s()[0])
            raise

    def can_admit(self) -> bool:
        """Sort the queue by deadline; return whether its first request can start."""
        scheduler, jobs = self._scheduler, self._jobs
        if not scheduler.can_admit:
            return False
        # Running streams come back for their next segments: if new ones must wait, before those.
        full = self._is_full()
        order = sorted(scheduler.waiting, key=lambda r: (full and not jobs[r].started, deadline_s(jobs[r])))
        scheduler.waiting = deque(order)
        return scheduler.can_admit and not (full and not jobs[order[0]].started)

    def wait_s(self, request: int | None = None) -> float:
        """Estimate the time until a request starts, or one that would arrive now."""
        new = self._new_requests()
        if request is None:
            return self.waits_s()[-1]
        return self.waits_s()[new.index(request)] if request in new else 0.0

    def waits_s(self) -> list[float]:
        """Estimate when the waiting requests will start, in order, and then one more."""
        lengths_s = [left_s(self._jobs[request], self._capacity) for request in self._new_requests()]
        running = demands(self._jobs.values(), self._capacity)
        return self._capacity.waits_s(running, [*lengths_s, TYPICAL_S], slots=self._scheduler.slots)

    def _is_full(self) -> bool:
        """Return whether new streams must wait, so that running ones do not have underruns."""
        jobs, capacity, new = self._jobs, self._capacity, self._new_requests()
        if not new or (capacity.max_streams == "auto" and not self._profile.streaming):
            return False
        if self._staggered and any(jobs[request].is_new for request in self._scheduler.running):
            return True
        return not capacity.admits(demands(jobs.values(), capacity), left_s(jobs[new[0]], capacity))

    def _new_requests(self) -> list[int]:
        """Return the requests that have not started, in order of arrival."""
        return sorted(request for request in self._scheduler.waiting if not self._jobs[request].started)
