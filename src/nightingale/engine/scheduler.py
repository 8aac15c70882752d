"""Who speaks next. Integers only: no tensor, no thread, no clock.

Utterances wait in a bounded line and are given slots in the order they came. Running ones always fill the
slots from zero without a gap, so that a step is one block of rows; when one leaves, the last takes its place.
Where memory is counted in bytes, the first in line waits until there is what it needs, and all behind it.
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
    budget_bytes: int = 0
    """Of memory, for all who run; 0: as much as the slots have."""
    waiting: deque[int] = field(default_factory=deque)
    running: list[int] = field(default_factory=list)
    """running[slot] is the ticket in that slot."""
    needs_bytes: dict[int, int] = field(default_factory=dict)
    """Of those in line or running who have said what they need; nothing, if they have not."""

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
                fix="Try again in a moment. A server takes more with --max-queue.",
            )
        self.waiting.append(ticket)

    @property
    def may_admit(self) -> bool:
        """Whether somebody waits, and there is a slot and memory for it. Alone it may always try."""
        if not self.waiting or len(self.running) >= self.slots:
            return False
        wanted = self.used_bytes + self.needs_bytes.get(self.waiting[0], 0)
        return not self.budget_bytes or not self.running or wanted <= self.budget_bytes

    @property
    def used_bytes(self) -> int:
        return sum(self.needs_bytes.get(ticket, 0) for ticket in self.running)

    def admit(self) -> tuple[int, int] | None:
        """Give the next in line a slot: (ticket, slot), if both exist."""
        if not self.may_admit:
            return None
        ticket = self.waiting.popleft()
        self.running.append(ticket)
        return ticket, len(self.running) - 1

    def leave(self, ticket: int) -> Move | None:
        """Forget a ticket, wherever it is; says what must move so that no gap is left."""
        self.needs_bytes.pop(ticket, None)
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
