"""Admission of requests to decoder slots. Integers only: no arrays, no threads, no clock.

Requests wait in a bounded admission queue until they are chosen for a slot. Running requests occupy
the slots from zero up without a gap, so that a decode step is one block of rows; when a request leaves, the
one in the last slot moves to its place.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from nightingale.errors import QueueFull


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """Admission queue and slots. Requests are numbers that the caller chose."""

    slots: int
    queue_limit: int
    waiting: deque[int] = field(default_factory=deque)
    running: list[int] = field(default_factory=list)
    """The request in each slot."""

    def submit(self, request: int, *, limited: bool = True) -> None:
        """Queue a request; raise QueueFull if there are too many, unless it is back for its next segment.

        Requests for which a slot is free do not count, so requests that arrive together can fill all slots
        and the queue.
        """
        if limited and len(self.waiting) >= self.queue_limit + self.slots - len(self.running):
            raise QueueFull(
                "too many requests are waiting",
                got=f"{len(self.waiting)} waiting and {len(self.running)} running",
                allowed=f"at most {self.queue_limit} waiting",
                fix="Try again in a moment. The option --max-queue of the server sets the limit.",
            )
        self.waiting.append(request)

    @property
    def can_admit(self) -> bool:
        """True if a request waits and a slot is free."""
        return bool(self.waiting) and len(self.running) < self.slots

    def admit(self, request: int) -> int:
        """Give a waiting request the next free slot and return it."""
        self.waiting.remove(request)
        self.running.append(request)
        return len(self.running) - 1

    def remove(self, request: int) -> tuple[int, int] | None:
        """Remove a request. If its slot must be filled, return the slot to move from and the slot to move to."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            slot, last = self.running.index(request), self.running.pop()
            if last != request:
                self.running[slot] = last
                return len(self.running), slot
        return None
