"""Decisions from snapshots alone, without a worker, and the clock that an engine is given."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from nightingale.backends.noise.renderer import NoiseRenderer
from nightingale.backends.profiles import BALANCED
from nightingale.engine.admission import Admission
from nightingale.engine.load import Model
from nightingale.engine.open_engine import open_engine
from nightingale.engine.pacing import Pacing
from nightingale.engine.requests.segments import SegmentQueue, segment_text
from nightingale.engine.snapshot import EngineSnapshot, StreamSnapshot
from nightingale.engine.stream_capacity import Capacity

QUEUED = StreamSnapshot(
    plays=True,
    has_started=False,
    is_new=True,
    is_parked=False,
    is_decoding=False,
    has_utterance=False,
    is_rendering=False,
    needs_more=False,
    opened_s=100.0,
    admitted_s=None,
    has_audio=False,
    plays_until_s=100.25,
    in_flight_s=0.0,
    held_s=0.0,
    held_until_s=0.0,
    next_block_s=0.0,
    surplus_tokens=0,
    made_s=0.0,
    chars=60.0,
)
PLAYING = QUEUED._replace(
    has_started=True,
    is_new=False,
    is_decoding=True,
    has_utterance=True,
    is_rendering=True,
    admitted_s=100.0,
    has_audio=True,
    plays_until_s=101.0,
    next_block_s=0.2,
)


def snapshot(*streams: StreamSnapshot, now_s: float = 100.0, slots: int = 4) -> EngineSnapshot:
    """Return a snapshot of requests 0, 1, ..., of which those that have not started wait."""
    waiting = tuple(request for request, one in enumerate(streams) if not one.has_started)
    running = tuple(request for request, one in enumerate(streams) if one.has_started)
    return EngineSnapshot(now_s, dict(enumerate(streams)), waiting, running, slots)


def pacing(rate: float | None) -> Pacing:
    capacity: Any = Capacity()
    capacity.meter = type("Meter", (), {"rate": rate})()
    return Pacing(capacity, NoiseRenderer.__new__(NoiseRenderer), competing=True)


def test_a_snapshot_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        snapshot(QUEUED).now_s = 0.0  # type: ignore[misc]
    with pytest.raises(AttributeError):
        QUEUED.plays = False  # type: ignore[misc]


def test_a_deadline_is_when_the_audio_that_is_made_ends() -> None:
    assert PLAYING.deadline_s(100.0) == 101.0
    assert PLAYING._replace(in_flight_s=0.5).deadline_s(100.0) == 101.5
    first_block = QUEUED._replace(in_flight_s=0.5)
    assert first_block.deadline_s(100.0) == 100.75
    assert first_block.deadline_s(102.0) == 102.5, "audio that has not been handed out does not run out"


def test_the_waiting_request_with_the_earliest_deadline_is_next() -> None:
    admission = Admission(Capacity(max_streams=8), BALANCED, most_starting=None)
    later = QUEUED._replace(plays_until_s=100.5)
    assert admission.next_request(snapshot(later, QUEUED, PLAYING)) == 1
    assert admission.next_request(snapshot(later, QUEUED, PLAYING, slots=1)) is None


def test_a_new_request_waits_while_as_many_start_as_may() -> None:
    admission = Admission(Capacity(max_streams=8), BALANCED, most_starting=1)
    starting = PLAYING._replace(is_new=True, has_audio=False)
    assert admission.next_request(snapshot(QUEUED, starting)) is None
    assert admission.position(0, snapshot(QUEUED, starting)) == 1
    assert admission.next_request(snapshot(QUEUED, PLAYING)) == 0


def test_a_first_block_goes_first_if_the_other_listener_can_wait_for_it() -> None:
    new = PLAYING._replace(is_new=True, has_audio=False, plays_until_s=100.25)
    assert pacing(rate=4.0).in_order([0, 1], snapshot(PLAYING, new)) == [1, 0]
    hurried = PLAYING._replace(plays_until_s=100.3, in_flight_s=0.0)
    assert pacing(rate=0.5).in_order([0, 1], snapshot(hurried, new)) == [0, 1]


def test_a_request_that_runs_alone_is_not_limited() -> None:
    limits = pacing(rate=4.0).block_limits(0, snapshot(PLAYING))
    assert not limits.concurrent
    two = pacing(rate=4.0).block_limits(0, snapshot(PLAYING, PLAYING._replace(plays_until_s=100.4)))
    assert two.concurrent
    assert two.tokens_in_time == pytest.approx(0.5 * 4.0 * 0.2 * 25)


def test_an_engine_reads_the_clock_that_it_is_given(noise_model: Model) -> None:
    ticks = iter(range(1_000_000))
    engine = open_engine(
        noise_model.with_defaults(max_new_tokens=8), BALANCED, clock=lambda: float(next(ticks))
    )
    try:
        session = engine.open_session({"seed": 1})
        engine.worker.submit(
            session, SegmentQueue(segment_text(noise_model.frontend, "Hm.", None, split_chars=60))
        )
        assert sum(len(chunk.samples) for chunk in session.chunks()) > 0
    finally:
        engine.close()
    timing = session.timing
    assert timing.admitted_s is not None
    assert timing.first_audio_s is not None
    assert timing.ended_s is not None
    times_s = [timing.opened_s, timing.admitted_s, timing.first_audio_s, timing.ended_s]
    assert times_s == sorted(times_s)
    assert all(time_s.is_integer() for time_s in times_s)


def test_a_closed_engine_has_no_requests(noise_model: Model) -> None:
    engine = open_engine(noise_model.with_defaults(max_new_tokens=400), replace(BALANCED, slots=1))
    sessions = [engine.open_session({"seed": seed}) for seed in range(3)]
    for session in sessions:
        text = segment_text(noise_model.frontend, "Hello there. " * 50, None, split_chars=60)
        engine.worker.submit(session, SegmentQueue(text))
    engine.close()
    assert engine.worker.occupancy.waiting == engine.worker.occupancy.speaking == 0
    assert [session.place for session in sessions[1:]] == [None, None]
