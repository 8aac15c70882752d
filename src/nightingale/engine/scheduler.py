"""Who speaks next. Integers only: no tensor, no thread, no clock.

Utterances wait in a bounded line and are given slots in the order they came. Running ones always fill the
slots from zero without a gap, so that a step is one block of rows; when one leaves, the last takes its place.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from nightingale.errors import QueueFull


@dataclass(frozen=True, slots=True)
class Move:
    """What lies in slot `source` must be brought to slot `target`."""

    source: int
    target: int


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """Tickets are numbers that the caller chose; a ticket is waiting, running or unknown here."""

    slots: int
    queue_limit: int
    waiting: deque[int] = field(default_factory=deque)
    running: list[int] = field(default_factory=list)
    """running[slot] is the ticket in that slot."""

    def submit(self, ticket: int, *, limited: bool = True) -> None:
        """Join the line. A request that is already being served comes back unlimited for its next piece.

        Whoever will step into a free slot does not count as waiting, so a crowd that comes at once finds
        every place there is.
        """
        if limited and len(self.waiting) >= self.queue_limit + self.slots - len(self.running):
            raise QueueFull(
                "too many requests are waiting",
                got=f"{len(self.waiting)} waiting and {len(self.running)} speaking",
                allowed=f"at most {self.queue_limit} waiting",
                fix="Try again in a moment, or open the engine with a larger queue.",
            )
        self.waiting.append(ticket)

    def admit(self) -> tuple[int, int] | None:
        """Give the next in line a slot: (ticket, slot), if both exist."""
        if not self.waiting or len(self.running) >= self.slots:
            return None
        ticket = self.waiting.popleft()
        self.running.append(ticket)
        return ticket, len(self.running) - 1

    def leave(self, ticket: int) -> Move | None:
        """Forget a ticket, wherever it is; says what must move so that no gap is left."""
        if ticket in self.waiting:
            self.waiting.remove(ticket)
            return None
        if ticket not in self.running:
            return None
        hole, last = self.running.index(ticket), self.running.pop()
        if last == ticket:
            return None
        self.running[hole] = last
        return Move(source=len(self.running), target=hole)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running
