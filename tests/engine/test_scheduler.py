"""Who speaks next, in integers."""

from __future__ import annotations

import pytest

from nightingale.engine.scheduler import Move, Scheduler
from nightingale.errors import QueueFull


def test_slots_are_given_in_the_order_of_arrival() -> None:
    line = Scheduler(slots=2, queue_limit=9)
    for ticket in (7, 8, 9):
        line.submit(ticket)
    assert [line.admit(), line.admit(), line.admit()] == [(7, 0), (8, 1), None]
    assert list(line.waiting) == [9]


def test_the_last_takes_the_place_of_who_leaves() -> None:
    line = Scheduler(slots=3, queue_limit=9)
    for ticket in (1, 2, 3):
        line.submit(ticket)
        line.admit()
    assert line.leave(1) == Move(source=2, target=0)
    assert line.running == [3, 2]
    assert line.leave(2) is None
    assert line.leave(3) is None
    assert line.idle


def test_a_full_line_refuses_but_takes_back_who_was_already_served() -> None:
    line = Scheduler(slots=1, queue_limit=1)
    line.submit(1)  # for the free slot
    line.submit(2)
    with pytest.raises(QueueFull, match="at most 1 waiting"):
        line.submit(3)
    line.submit(3, limited=False)
    assert list(line.waiting) == [1, 2, 3]


def test_leaving_the_line_or_nowhere_moves_nothing() -> None:
    line = Scheduler(slots=1, queue_limit=5)
    line.submit(1)
    assert line.leave(1) is None
    assert line.leave(99) is None
    assert line.idle


def test_nobody_waits_for_ever() -> None:
    """Pieces of long texts come back to the end of the line, so a short request waits at most one round."""
    line = Scheduler(slots=1, queue_limit=9)
    for ticket in (1, 2):
        line.submit(ticket)
    served = []
    for _ in range(4):
        admitted = line.admit()
        assert admitted is not None
        served.append(admitted[0])
        line.leave(admitted[0])
        line.submit(admitted[0], limited=False)
    assert served == [1, 2, 1, 2]
