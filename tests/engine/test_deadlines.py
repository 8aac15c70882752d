"""Concurrent streams in simulated time: no underruns, order of deadlines, and when first audio is handed out."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from simulated_engine import Costs, Listener, SimulatedEngine

from nightingale.backends.profiles import EXACT
from nightingale.engine.load import Model
from nightingale.engine.rate import RateMeter
from nightingale.engine.session import FIRST_AUDIO_S, LATE_S, Timing
from nightingale.engine.snapshot import EngineSnapshot
from nightingale.engine.stream_capacity import Capacity

WREN = Costs()
"""Wren's costs on two cores of a Neoverse-N1, measured; T3 in float32."""
WREN_INT8 = replace(WREN, prefill_s=0.013, step_s=0.0019, row_s=0.0006)

Simulate = Callable[..., SimulatedEngine]


@pytest.fixture
def simulate(noise_model: Model) -> Simulate:
    return lambda **options: SimulatedEngine(noise_model, **options)


def speak_together(engine: SimulatedEngine, count: int, rounds: int) -> list[list[Listener]]:
    """Let listeners ask at once, for sentences of two to four seconds, as often as `rounds`."""
    rng, spoken = random.Random(1), []
    for _ in range(rounds):
        spoken.append([engine.open(rng.randint(55, 95)) for _ in range(count)])
        engine.run()
    return spoken


def speak_in_turn(engine: SimulatedEngine, count: int, sentences: int, *, plays: bool) -> list[Listener]:
    """Let each of several listeners ask for its next sentence once it has the last one, or has played it."""
    rng, spoken, left = random.Random(2), [], [sentences] * count

    def ask(who: int) -> None:
        if left[who]:
            left[who] -= 1
            listener = engine.open(rng.randint(55, 95))
            spoken.append(listener)
            listener.on_end = lambda: engine.cores.at(listener.played_s if plays else 0.0, lambda: ask(who))

    for who in range(count):
        engine.cores.at(0.3 * who, lambda who=who: ask(who))
    engine.run()
    return spoken


@pytest.mark.parametrize("costs", [WREN, WREN_INT8])
@pytest.mark.parametrize(("count", "last_s"), [(1, 0.15), (2, 0.25), (4, 0.5)])
def test_listeners_that_ask_at_once_have_no_underruns(
    simulate: Simulate, costs: Costs, count: int, last_s: float
) -> None:
    rounds = speak_together(simulate(costs=costs), count, 10)
    assert sum(listener.underruns for listeners in rounds for listener in listeners) == 0
    first_s = sorted(listeners[-1].first_audio_s for listeners in rounds)
    assert first_s[len(first_s) // 2] < last_s


@pytest.mark.parametrize("plays", [True, False])
@pytest.mark.parametrize("count", [2, 4])
def test_listeners_that_come_and_go_have_no_underruns(simulate: Simulate, count: int, plays: bool) -> None:
    spoken = speak_in_turn(simulate(costs=WREN_INT8), count, 10, plays=plays)
    assert len(spoken) == 10 * count
    assert sum(listener.underruns for listener in spoken) == 0


def test_between_the_sentences_of_a_request_its_listener_is_supplied(simulate: Simulate) -> None:
    engine = simulate()
    speak_together(engine, 2, 1)  # measures the rate
    listeners = [engine.open(40, 30, 50, 20, 45) for _ in range(3)]
    engine.run()
    assert [listener.underruns for listener in listeners] == [0, 0, 0]


def test_more_listeners_than_the_rate_supplies_wait_and_are_all_served(simulate: Simulate) -> None:
    """A machine of half the speed supplies two: the others wait for their first audio, not in the middle."""
    slow = Costs(
        prefill_s=0.046, step_s=0.0084, row_s=0.0014, flow_s=(0.01, 0.0046), vocoder_s=(0.006, 0.0152)
    )
    engine = simulate(costs=slow)
    speak_together(engine, 2, 2)
    listeners = [engine.open(75) for _ in range(6)]
    engine.run()
    assert sum(listener.underruns for listener in listeners) <= 2, "29 without a limit"
    first_s = [listener.first_audio_s for listener in listeners]
    assert first_s == sorted(first_s), "first come, first served"
    assert first_s[-1] > 2.0
    assert all(len(listener.arrivals) > 2 for listener in listeners)


def test_the_block_with_the_earliest_deadline_is_rendered_first(simulate: Simulate) -> None:
    """Whatever is chosen has a deadline not after those that wait, unless it is the first block of a new stream."""
    engine = simulate(max_streams=3)
    for at_s in (0.0, 0.4, 0.5):
        engine.cores.at(at_s, lambda: engine.open(150))
    order, chosen = engine.worker._pacing.in_order, []

    def watch(ready: list[int], snapshot: EngineSnapshot) -> list[int]:
        first, *others = result = order(ready, snapshot)
        if others and not any(snapshot.streams[request].is_new for request in ready):
            chosen.append(snapshot.deadline_s(first) <= min(map(snapshot.deadline_s, others)))
        return result

    engine.worker._pacing.in_order = watch  # type: ignore[method-assign,assignment]
    engine.run()
    assert len(chosen) > 10
    assert all(chosen)


def test_a_first_block_does_not_make_the_block_of_a_running_stream_late(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = simulate(max_streams=3)
    engine.open(100)
    engine.open(100)
    worker = engine.worker
    while not worker._ready or worker._jobs[0].is_new:
        worker._step()
    for request, delivered in ((0, True), (1, False)):
        job = worker._jobs[request]
        job.in_flight_tokens, job.held = 0, []
        job.session.timing.tokens = 10 if delivered else 0
        job.session.timing.first_audio_s, job.session.timing.samples = None, 0
    monkeypatch.setattr(Capacity, "rate", 4.0)
    for added_s, first in ((0.1, 0), (1.9, 1)):
        timing = worker._jobs[0].session.timing
        timing.samples += round(added_s * 24_000)
        timing.delivered()
        for job in worker._jobs.values():
            job.changed()
        assert worker._pacing.in_order([0, 1], worker._snapshot())[0] == first


def test_the_deadline_is_when_a_player_runs_out_of_audio() -> None:
    now_s = 100.0
    timing = Timing(lambda: now_s)
    assert timing.deadline_s == 100.0 + FIRST_AUDIO_S
    now_s = 100.2
    timing.samples += 24_000
    timing.delivered()
    assert timing.first_audio_s == 100.2
    assert timing.deadline_s == 101.2
    now_s = 100.9
    timing.samples += 12_000
    timing.delivered()
    assert timing.deadline_s == 101.7


def test_a_stream_that_is_later_than_ten_seconds_has_no_earlier_deadline() -> None:
    now_s = 100.0
    timing = Timing(lambda: now_s)
    timing.samples += 24_000
    timing.delivered()
    now_s = 150.0
    timing.delivered()
    assert timing.deadline_s == 150.0 - LATE_S


@pytest.mark.parametrize("slower", [3, 4, 6])
def test_other_requests_start_while_a_long_one_is_late(simulate: Simulate, slower: int) -> None:
    """On a machine that is too slow for a book, a short request does not wait for its end: that took 162 to 381 s."""
    costs = Costs(
        prefill_s=slower * WREN.prefill_s,
        step_s=slower * WREN.step_s,
        row_s=slower * WREN.step_s,
        flow_s=(slower * WREN.flow_s[0], slower * WREN.flow_s[1]),
        vocoder_s=(slower * WREN.vocoder_s[0], slower * WREN.vocoder_s[1]),
    )
    engine = simulate(costs=costs, cores=1, profile=EXACT)
    engine.renderer.max_in_flight = 1
    book, short = engine.open(*[75] * 60), list[Listener]()
    for at_s in (5, 20, 40):
        engine.cores.at(at_s, lambda: short.append(engine.open(60)))
    engine.run()
    assert max(listener.first_audio_s for listener in short) < 25
    assert len(book.arrivals) == 60


def test_where_rows_are_decoded_one_by_one_the_most_urgent_one_is_first(simulate: Simulate) -> None:
    """Three requests at once end one after the other, not all three at the end."""
    engine = simulate(costs=replace(WREN, row_s=WREN.step_s), cores=1, profile=EXACT)
    listeners = [engine.open(75) for _ in range(3)]
    engine.run()
    first_s = [listener.first_audio_s for listener in listeners]
    assert first_s[0] < 0.6 * first_s[1] < 0.8 * first_s[2]


def test_a_stream_starts_after_the_first_block_of_the_one_before_it(simulate: Simulate) -> None:
    engine = simulate()
    prefill, starting = engine.worker._prefill, []

    def count(*arguments: object) -> None:
        running = engine.worker.scheduler.running
        starting.append(sum(engine.worker._jobs[request].is_new for request in running))
        prefill(*arguments)  # type: ignore[arg-type]

    engine.worker._prefill = count  # type: ignore[method-assign]
    speak_together(engine, 4, 1)
    assert starting == [1, 1, 1, 1]


def test_a_first_block_waits_until_the_second_can_follow_it(simulate: Simulate) -> None:
    """With slow first blocks of others before its second one, a stream is handed out later, and without a gap."""
    costs = replace(WREN, prefill_s=0.03, step_s=0.005)
    engine = simulate(costs=costs)
    first, *_ = speak_together(engine, 4, 3)[-1]
    assert first.underruns == 0
    alone = simulate(costs=costs)
    assert first.first_audio_s > speak_together(alone, 1, 1)[0][0].first_audio_s + 0.02


def test_the_rate_is_that_of_the_renderer(simulate: Simulate) -> None:
    engine = simulate()
    speak_together(engine, 4, 3)
    rate = engine.worker.capacity.rate
    assert rate is not None
    per_audio_s = 25 * WREN.vocoder_s[1]  # the slowest stage
    assert rate == pytest.approx(1 / per_audio_s, rel=0.15)


def test_the_rate_is_what_enough_streams_reach() -> None:
    meter, now_s = RateMeter(), 0.0

    def work(seconds: float, *, rate: float, streams: int) -> float:
        nonlocal now_s
        meter.pause()
        for _ in range(round(20 * seconds)):
            meter.add(round(24_000 * rate / 20), now_s, streams=streams)
            now_s += 1 / 20
        return meter.rate or 0.0

    assert meter.rate is None
    assert work(5, rate=2.0, streams=1) == pytest.approx(2.0)
    assert work(20, rate=4.0, streams=3) == pytest.approx(4.0, rel=0.02), "more streams reach more"
    assert work(50, rate=2.0, streams=1) == pytest.approx(4.0, rel=0.02), "one does not show what three could"
    assert work(50, rate=2.5, streams=3) == pytest.approx(2.5, rel=0.02), "older measurements are forgotten"
    assert work(1, rate=30.0, streams=40) == pytest.approx(30.0, rel=0.02), "far more are measured anew"
    assert work(50, rate=2.5, streams=20) == pytest.approx(2.5, rel=0.02)
    now_s += 1000
    assert work(1, rate=2.5, streams=3) == pytest.approx(2.5, rel=0.02), "time without work does not count"


def test_blocks_grow_with_the_listeners_buffers(simulate: Simulate) -> None:
    engine = simulate(costs=WREN_INT8)
    speak_together(engine, 2, 1)
    listeners = [engine.open(250) for _ in range(3)]
    engine.run()
    for listener in listeners:
        lengths_s = [length_s for _, length_s in listener.arrivals]
        assert max(lengths_s[:3]) < 0.5 < max(lengths_s)
    assert math.isclose(sum(length_s for _, length_s in listeners[0].arrivals), 250 / 25 + 0.12, abs_tol=0.01)
