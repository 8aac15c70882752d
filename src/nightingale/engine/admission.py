"""Admission of waiting requests: the next one to start, and the places and waits of the others.

The methods decide from a snapshot; the worker gives the request that they choose a slot.
"""

from __future__ import annotations

import math
from typing import Final

from nightingale.backends.profiles import Profile
from nightingale.engine.snapshot import EngineSnapshot, StreamSnapshot
from nightingale.engine.stream_capacity import Capacity, Demand, QueuePlace, known_wait_s
from nightingale.errors import QueueFull

TYPICAL_S: Final = 4.0
"""Audio of a request that has not arrived yet, for estimates."""
ESTIMATE_AGE_S: Final = 2.0
"""Estimates of an unchanged queue are used for this long: one takes up to tens of milliseconds."""
RESERVE_S: Final = 0.4
"""Audio that a listener should always have: its next block takes up to half of it, and other programs the rest."""
LEAST_LEFT_S: Final = 0.3
"""Audio that a request which has not ended is expected to make still, at the least."""


class Admission:
    """Decisions about the queue of a worker: it is ordered by deadlines and limited by capacity."""

    def __init__(self, capacity: Capacity, profile: Profile, most_starting: int | None) -> None:
        """most_starting: streams that may wait for their first blocks at the same time; None: any number."""
        self._capacity = capacity
        self._profile = profile
        self._most_starting = most_starting
        self._estimated: tuple[list[int], float, list[float]] = ([], float("-inf"), [])
        """The last estimate: for which requests, when, and their waits."""

    def check_stalled(self, stalled: int) -> None:
        """Raise QueueFull if too many requests are stalled: each holds buffered audio."""
        if stalled >= self._profile.stalled_limit:
            raise QueueFull(
                "too many stalled listeners do not read their audio",
                got=f"{stalled} of them, each {self._profile.ahead_seconds:g} s behind or more",
                allowed=f"at most {self._profile.stalled_limit}",
                fix="Read or close the streams that are open, then try again.",
            )

    def add_waits(self, error: QueueFull, snapshot: EngineSnapshot) -> None:
        """Add to the error of a full queue when it is worth trying again."""
        new = self._new_requests(snapshot)
        waits_s = self._waits_s(new, snapshot)
        error.retry_after_s = known_wait_s(waits_s[0])
        error.wait_s = known_wait_s(waits_s[-1])
        error.position = len(new) + 1

    def next_request(self, snapshot: EngineSnapshot) -> int | None:
        """Return the request with the earliest deadline among those that may start; None if there is none.

        Running streams come back for their next segments. If new ones must wait, these do not.
        """
        if not snapshot.has_free_slot:
            return None
        new = self._new_requests(snapshot)
        held = set(new) if new and self._is_full(new[0], snapshot) else ()
        free = [request for request in snapshot.waiting if request not in held]
        return min(free, key=snapshot.deadline_s, default=None)

    def wait_s(self, snapshot: EngineSnapshot) -> float:
        """Estimate the seconds until a request that would arrive now starts."""
        return self._waits_s(self._new_requests(snapshot), snapshot)[-1]

    def position(self, request: int, snapshot: EngineSnapshot) -> int:
        """Return the position of a request among those that have not started; 0 if it has or starts now."""
        new = self._new_requests(snapshot)
        return 0 if request not in new or request == self.next_request(snapshot) else new.index(request) + 1

    def place(self, request: int, snapshot: EngineSnapshot) -> QueuePlace | None:
        """Return the position of a request and its estimated wait; None if it has started or starts now."""
        position = self.position(request, snapshot)
        if not position:
            return None
        waits_s = self._waits_s(self._new_requests(snapshot), snapshot)
        return QueuePlace(position, known_wait_s(waits_s[position - 1]))

    def _waits_s(self, new: list[int], snapshot: EngineSnapshot) -> list[float]:
        """Estimate when each of these requests starts, and at the end one that would arrive now."""
        now_s = snapshot.now_s
        estimated, at_s, waits_s = self._estimated
        if new != estimated or now_s - at_s > ESTIMATE_AGE_S:
            lengths_s = [*(self._left_s(snapshot.streams[one]) for one in new), TYPICAL_S]
            waits_s = self._capacity.waits_s(self._demands(snapshot), lengths_s, slots=snapshot.slots)
            at_s = now_s
            self._estimated = (new, now_s, waits_s)
        return [max(0.0, wait_s - (now_s - at_s)) for wait_s in waits_s]

    def _is_full(self, first: int, snapshot: EngineSnapshot) -> bool:
        """Return whether new streams, of which this is the first, must wait: others would have underruns."""
        streams, capacity = snapshot.streams, self._capacity
        plays = streams[first].plays or any(one.plays for one in streams.values() if one.has_started)
        if capacity.max_streams == "auto" and not (plays and self._profile.batched):
            return False
        starting = sum(streams[request].is_new for request in snapshot.running)
        if self._most_starting is not None and starting >= self._most_starting:
            return True
        return not capacity.admits(self._demands(snapshot), self._left_s(streams[first]))

    def _demands(self, snapshot: EngineSnapshot) -> list[Demand]:
        """Return what the streams that have started will need."""
        return [
            Demand(_buffered_s(stream, snapshot.now_s), self._left_s(stream))
            for stream in snapshot.streams.values()
            if stream.has_started and not stream.is_parked
        ]

    def _left_s(self, stream: StreamSnapshot) -> float:
        """Return how much audio a request is expected to make still; infinite while its text arrives."""
        if stream.chars is None:
            return math.inf
        return max(LEAST_LEFT_S, stream.chars / self._capacity.chars_per_s - stream.made_s)

    def _new_requests(self, snapshot: EngineSnapshot) -> list[int]:
        """Return the requests that have not started, in order of arrival."""
        streams = snapshot.streams
        return sorted(request for request in snapshot.waiting if not streams[request].has_started)


def _buffered_s(stream: StreamSnapshot, now_s: float) -> float:
    """Return how long the listener can play, without the reserve."""
    starts_s = max(now_s, stream.held_until_s) if stream.held_s else 0.0
    return max(0.0, max(stream.plays_until_s, starts_s) + stream.held_s - now_s - RESERVE_S)
