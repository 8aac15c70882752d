"""The scheduler: order of admission, a bounded queue, and slots without gaps."""

from __future__ import annotations

import pytest
from engine_helpers import is_idle

from nightingale.engine.scheduler import Scheduler
from nightingale.errors import QueueFull


def test_slots_are_given_from_zero_up_while_one_is_free() -> None:
    scheduler = Scheduler(slots=2, queue_limit=9)
    for request in (7, 8, 9):
        scheduler.submit(request)
    assert [scheduler.admit(7), scheduler.admit(8)] == [0, 1]
    assert not scheduler.can_admit
    assert list(scheduler.waiting) == [9]


def test_the_last_slot_moves_to_the_gap() -> None:
    scheduler = Scheduler(slots=3, queue_limit=9)
    for request in (1, 2, 3):
        scheduler.submit(request)
        scheduler.admit(request)
    assert scheduler.remove(1) == (2, 0)
    assert scheduler.running == [3, 2]
    assert scheduler.remove(2) is None
    assert not is_idle(scheduler)
    assert scheduler.remove(3) is None
    assert is_idle(scheduler)


def test_a_full_queue_refuses_new_requests_but_not_those_already_served() -> None:
    scheduler = Scheduler(slots=1, queue_limit=1)
    scheduler.submit(1)  # for the free slot
    scheduler.submit(2)
    with pytest.raises(QueueFull, match="at most 1 waiting"):
        scheduler.submit(3)
    scheduler.submit(3, limited=False)
    assert list(scheduler.waiting) == [1, 2, 3]
    running = Scheduler(slots=1, queue_limit=1)
    running.submit(1)
    running.admit(1)
    running.submit(2)
    with pytest.raises(QueueFull, match="1 waiting and 1 running"):
        running.submit(3)


def test_removing_a_waiting_or_unknown_request_moves_nothing() -> None:
    scheduler = Scheduler(slots=1, queue_limit=5)
    scheduler.submit(1)
    assert not is_idle(scheduler)
    assert scheduler.remove(1) is None
    assert scheduler.remove(99) is None
    assert is_idle(scheduler)


def test_requests_take_turns() -> None:
    """A long text is queued again for each segment, so a short request waits for one round at most."""
    scheduler = Scheduler(slots=1, queue_limit=9)
    for request in (1, 2):
        scheduler.submit(request)
    served = []
    for _ in range(4):
        first = scheduler.waiting[0]
        scheduler.admit(first)
        served.append(first)
        scheduler.remove(first)
        scheduler.submit(first, limited=False)
    assert served == [1, 2, 1, 2]
