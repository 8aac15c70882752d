"""`max_streams="auto"`: how many streams are admitted at a measured rate, and how long the others wait."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from simulated_engine import Costs, SimulatedEngine

from nightingale import TTS
from nightingale.backends.profiles import BALANCED
from nightingale.clocks import CLOCKS
from nightingale.engine.load import Model
from nightingale.engine.rate import RateMeter
from nightingale.engine.stream_capacity import Capacity, Demand, QueuePlace, can_supply
from nightingale.errors import ConfigError, QueueFull

Simulate = Callable[..., SimulatedEngine]
ENDLESS = math.inf
FAST, SLOW = (4, 5, 6), (2, 3)
"""Streams of 12 s at once where the rate is 4.7, and at half of it: one that ends makes room for the next."""


@pytest.fixture
def simulate(noise_model: Model) -> Simulate:
    return lambda **options: SimulatedEngine(noise_model, **options)


def capacity_at(rate: float) -> Capacity:
    meter = RateMeter()
    for step in range(100):
        meter.add(24_000, step / rate, streams=99)
    return Capacity("auto", meter)


def admitted(capacity: Capacity, left_s: float) -> int:
    """Return how many streams are admitted that ask at once."""
    running: list[Demand] = []
    while len(running) < 99 and capacity.admits(running, left_s):
        running.append(Demand(capacity.first_audio_s, left_s))
    return len(running)


@pytest.mark.parametrize(("rate", "streams"), [(1.5, 1), (2.5, 2), (4.8, 4), (40.0, 34)])
def test_as_many_streams_are_admitted_as_the_rate_supplies(rate: float, streams: int) -> None:
    assert admitted(capacity_at(rate), ENDLESS) == streams


def test_short_texts_are_admitted_where_endless_ones_are_not() -> None:
    """Their listeners start to play a moment later, and have ended before the engine falls behind."""
    capacity = capacity_at(3.0)
    assert admitted(capacity, 0.5) > admitted(capacity, ENDLESS)


def test_another_stream_is_admitted_beside_a_listener_with_much_audio() -> None:
    empty, full = Demand(0.0, 10.0), Demand(8.0, 10.0)
    assert not can_supply([empty, Demand(0.2, 5.0)], 1.5)
    assert can_supply([full, Demand(0.2, 5.0)], 1.5)


def test_one_stream_is_always_admitted_and_nothing_is_held_back_where_none_can_be_supplied() -> None:
    assert capacity_at(1.1).admits([], ENDLESS)
    assert admitted(capacity_at(0.5), ENDLESS) == 99
    assert admitted(Capacity("auto"), ENDLESS) == 2, "the rate is not known"


def test_a_number_is_kept_whatever_the_rate() -> None:
    capacity = replace(capacity_at(0.5), max_streams=3)
    assert admitted(capacity, ENDLESS) == 3


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5, "many", None])
def test_other_values_are_refused(wrong: object, noise_model: Model) -> None:
    with pytest.raises(ConfigError, match="number of concurrent streams"):
        TTS.over(noise_model, max_streams=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("speed", [0.5, 1.0])
def test_admission_follows_the_speed_of_the_machine(simulate: Simulate, speed: float) -> None:
    """The same requests on a machine of half the speed: fewer run at once, and none starves."""
    engine = simulate(costs=scaled(1 / speed))
    at_once = serve_many(engine, 12)
    rate = engine.worker.capacity.rate
    assert rate == pytest.approx(4.7 * speed, rel=0.1)
    assert at_once in (FAST if speed == 1.0 else SLOW)
    assert sum(listener.underruns for listener in engine.listeners) <= 1


def test_admission_shrinks_when_the_machine_slows_down_and_grows_again(simulate: Simulate) -> None:
    engine = simulate()
    assert serve_many(engine, 12) in FAST
    for costs, streams in ((scaled(2.0), SLOW), (scaled(1.0), FAST)):
        engine.costs.__dict__.update(costs.__dict__)
        serve_many(engine, 12)  # learns the new rate
        assert serve_many(engine, 12) in streams


def scaled(factor: float) -> Costs:
    plain = Costs()
    flow_s, vocoder_s = (tuple(factor * one for one in cost) for cost in (plain.flow_s, plain.vocoder_s))
    return Costs(factor * plain.prefill_s, factor * plain.step_s, factor * plain.row_s, flow_s, vocoder_s)  # type: ignore[arg-type]


def serve_many(engine: SimulatedEngine, count: int) -> int:
    """Serve requests of 12 s that arrive together; return how many were decoded at once, at most."""
    most, accept = 0, engine.worker._accept
    before = len(engine.listeners)

    def watch(request: int, tokens: list[int]) -> None:
        nonlocal most
        most = max(most, len(engine.worker.scheduler.running))
        accept(request, tokens)

    engine.worker._accept = watch  # type: ignore[method-assign]
    for _ in range(count):
        engine.open(300)
    engine.run()
    engine.worker._accept = accept  # type: ignore[method-assign]
    served = engine.listeners[before:]
    assert all(len(listener.arrivals) > 2 for listener in served), "a request starved"
    starts_s = [listener.session.timing.admitted_s or 0.0 for listener in served]
    assert starts_s == sorted(starts_s), "first come, first served"
    return most


def test_texts_that_are_wanted_whole_are_not_held_back_unless_others_listen(simulate: Simulate) -> None:
    engine = simulate()
    serve_many(engine, 3)
    for _ in range(8):
        engine.open(75).session.plays = False
    while len(engine.worker.scheduler.running) < 7:
        engine.worker._step()  # does not end if they wait
    listening = simulate()
    serve_many(listening, 3)
    listening.open(300)
    for _ in range(8):
        listening.open(300).session.plays = False
    most = 0
    while listening.worker._jobs[3].session.timing.first_audio_s is None or most < 2:
        listening.worker._step()
        most = max(most, len(listening.worker.scheduler.running))
    assert most <= 5


@pytest.mark.parametrize("max_streams", ["auto", 2])
@pytest.mark.parametrize("tokens", [75, 200])
def test_the_estimated_wait_is_the_wait(simulate: Simulate, max_streams: int | str, tokens: int) -> None:
    engine = simulate(max_streams=max_streams)
    for _ in range(3):  # measures the rate
        for _ in range(3):
            engine.open(75)
        engine.run()
    listeners = [engine.open(tokens) for _ in range(10)]
    engine.cores.at(
        engine.cores.now_s + 0.5, lambda: estimates.extend(one.session.wait_s for one in listeners)
    )
    estimates: list[float | None] = []
    asked_s = engine.cores.now_s + 0.5
    engine.run()
    for estimate_s, listener in zip(estimates, listeners, strict=True):
        admitted_s = listener.session.timing.admitted_s
        assert estimate_s is not None
        assert admitted_s is not None
        assert estimate_s == pytest.approx(max(0.0, admitted_s - asked_s), rel=0.3, abs=0.35)
    assert estimates[-1] > 1.0  # type: ignore[operator]


def test_a_full_queue_says_when_to_come_again(simulate: Simulate) -> None:
    engine = simulate(profile=replace(BALANCED, slots=4, queue_limit=2))
    for _ in range(3):
        engine.open(75)
    engine.run()
    for _ in range(6):
        engine.open(200)
    refused: list[QueueFull] = []

    def try_again() -> None:
        with pytest.raises(QueueFull) as caught:
            engine.open(75)
        refused.append(caught.value)

    start_s = engine.cores.now_s
    engine.cores.at(start_s + 0.5, try_again)
    engine.run()
    asked_s = start_s + 0.5
    admissions_s = [one.session.timing.admitted_s or 0.0 for one in engine.listeners]
    place_s = min(at_s for at_s in admissions_s if at_s > asked_s)  # the next one leaves the queue
    assert refused[0].retry_after_s == pytest.approx(place_s - asked_s, rel=0.3, abs=0.35)


def test_waiting_requests_know_their_positions(simulate: Simulate) -> None:
    engine = simulate(profile=replace(BALANCED, slots=4, queue_limit=3), max_streams=1)
    engine.open(75)
    engine.run()
    listeners = [engine.open(200) for _ in range(4)]
    assert [one.session.first_position for one in listeners] == [0, 2, 3, 4], (
        "the first starts with the next step"
    )
    found: list[list[QueuePlace | None]] = []
    refused: list[QueueFull] = []

    def ask() -> None:
        found.append([one.session.place for one in listeners])
        for _ in range(3):  # the slots that are free count, too
            engine.open(200)
        with pytest.raises(QueueFull) as caught:
            engine.open(200)
        refused.append(caught.value)

    engine.cores.at(engine.cores.now_s + 0.5, ask)
    engine.run()
    (places,) = found
    assert places[0] is None, "it has started"
    assert [place.position for place in places[1:] if place] == [1, 2, 3]
    waits_s = [place.wait_s or 0.0 for place in places[1:] if place]
    assert 0.0 < waits_s[0] < waits_s[1] < waits_s[2]
    error = refused[0]
    assert error.position == len(engine.listeners) - 1, "one has ended and one runs"
    assert (error.wait_s or 0.0) > waits_s[2] > (error.retry_after_s or 0.0) > 0.0


def test_a_wait_behind_texts_that_still_arrive_is_not_known() -> None:
    capacity = replace(capacity_at(4.0), max_streams=1)
    assert capacity.waits_s([Demand(0.0, ENDLESS)], [3.0], slots=8) == [math.inf]


def test_the_number_of_streams_follows_from_the_rate() -> None:
    capacity = Capacity()
    assert capacity.streams is None, "nothing is measured yet"
    meter = capacity.meter
    meter.add(0, 0.0, streams=4)
    for second in range(1, 30):
        meter.add(10 * CLOCKS.sample_rate_hz, float(second), streams=8)
    assert capacity.streams == int(0.85 * 10)
    capacity.whole_segments = True
    assert capacity.streams == 5
    assert Capacity(max_streams=3).streams == 3
    assert Capacity(batching=True, block_s=0.05).streams == int(0.85 * 2.5 / 0.05)
