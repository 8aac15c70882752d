"""Many listeners of a GPU in simulated time: full batches, long blocks, no underruns."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from simulated_engine import SimulatedEngine
from simulated_gpu import TURBO, GpuCosts, gpu_parts, summary

from nightingale import TTS
from nightingale.backends.profiles import FAST
from nightingale.engine import worker
from nightingale.engine.batch_pacing import LARGEST_FIRST_BLOCK
from nightingale.engine.load import Model
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS

MULTILINGUAL = GpuCosts()
TOKENS = 102


@pytest.fixture
def simulate(noise_model: Model) -> Any:
    def make(costs: GpuCosts, *, stream: str = "block", slots: int = 64) -> SimulatedEngine:
        profile = replace(FAST, stream=stream, slots=slots, queue_limit=1024)
        engine = SimulatedEngine(noise_model, profile=profile, cores=1.8, **gpu_parts(costs))
        engine.model = engine.worker.model = engine.model.with_defaults(
            first_block_tokens=None, second_block_tokens=None
        )
        return engine

    return make


def speak(engine: SimulatedEngine, listeners: int, *, apart_s: float = 0.001) -> dict[str, float]:
    """Open requests a moment apart, twice: the first time the engine measures. Return the second time's times."""
    for _ in range(2):
        engine.listeners.clear()
        engine.renderer.batches.clear()
        begin_s = engine.cores.now_s
        for number in range(listeners):
            engine.cores.at(begin_s + apart_s * number, lambda: engine.open(TOKENS))
        engine.run()
    return summary(engine)


@pytest.mark.parametrize(
    ("costs", "listeners", "p95_s", "rate"),
    [
        (MULTILINGUAL, 1, 0.06, 18),
        (MULTILINGUAL, 4, 0.15, 45),
        (MULTILINGUAL, 32, 0.5, 120),
        (MULTILINGUAL, 64, 0.9, 140),
        (TURBO, 96, 0.5, 300),
    ],
)
def test_listeners_who_ask_at_once_have_no_underruns(
    simulate: Any, costs: GpuCosts, listeners: int, p95_s: float, rate: float
) -> None:
    found = speak(simulate(costs, slots=max(64, listeners)), listeners)
    assert found["with_underruns"] == 0
    assert found["p95"] < p95_s
    assert found["rate"] > rate


def test_listeners_who_come_one_after_the_other_have_no_underruns(simulate: Any) -> None:
    found = speak(simulate(MULTILINGUAL), 100, apart_s=0.05)
    assert found["with_underruns"] == 0
    assert found["p95"] < 0.3


@pytest.mark.parametrize("cores", [1.0, 1.8], ids=["T3 and blocks slow each other down", "they hardly do"])
@pytest.mark.parametrize(("costs", "p95_s"), [(MULTILINGUAL, 0.3), (TURBO, 0.1)])
@pytest.mark.parametrize("listeners", [3, 8, 24])
def test_callers_who_arrive_at_random_have_no_underruns(
    simulate: Any, costs: GpuCosts, p95_s: float, listeners: int, cores: float
) -> None:
    engine = simulate(costs)
    engine.cores.cores = cores
    speak(engine, 16)
    engine.listeners.clear()
    at_s, rng = engine.cores.now_s, random.Random(1)
    for _ in range(60):
        at_s += rng.expovariate(listeners * 25 / TOKENS)
        engine.cores.at(at_s, lambda: engine.open(TOKENS))
    engine.run()
    found = summary(engine)
    assert found["with_underruns"] == 0
    assert found["p95"] < p95_s


def test_a_listener_alone_gets_blocks_that_depend_on_nothing_but_the_text(simulate: Any) -> None:
    engine = simulate(MULTILINGUAL)
    speak(engine, 1)
    assert engine.renderer.batches == [[5 + LOOKAHEAD_TOKENS], [25], [TOKENS - 30 - LOOKAHEAD_TOKENS]]


def test_requests_that_are_not_played_get_the_blocks_of_one_that_runs_alone(simulate: Any) -> None:
    engine = simulate(MULTILINGUAL)
    for _ in range(2):
        engine.open(TOKENS).session.plays = False
    engine.run()
    assert engine.renderer.batches == [
        [5 + LOOKAHEAD_TOKENS] * 2,
        [25] * 2,
        [TOKENS - 30 - LOOKAHEAD_TOKENS] * 2,
    ]


def test_a_renderer_that_cannot_prepare_goes_on(
    tts_with: Callable[..., TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def fail() -> bool:
        calls.append(1)
        raise MemoryError("no memory for another graph")

    monkeypatch.setattr(worker, "IDLE_S", 0.01)
    with tts_with() as tts:
        monkeypatch.setattr(tts._worker.renderer, "prepare", fail)
        tts.say("Hello.", seed=1)
        while tts._worker.preparing:
            time.sleep(0.01)
        assert len(tts.say("Hello again.", seed=1).samples) > 0
    assert calls == [1]


def test_batches_are_full_and_first_blocks_last_while_others_are_rendered(simulate: Any) -> None:
    engine = simulate(MULTILINGUAL)
    speak(engine, 64)
    sizes = [len(batch) for batch in engine.renderer.batches]
    assert sizes.count(16) >= len(sizes) - 1, "only the last one may be smaller"
    assert len(sizes) <= 9, "two blocks for each listener"
    first = engine.renderer.batches[0]
    assert 12 <= min(first) <= max(first) <= LARGEST_FIRST_BLOCK + LOOKAHEAD_TOKENS


def test_whole_segments_are_rendered_in_full_batches(simulate: Any) -> None:
    engine = simulate(MULTILINGUAL, stream="segment")
    found = speak(engine, 64)
    assert engine.renderer.batches == [[TOKENS] * 16] * 4
    assert found["p95"] < 1.5
    assert found["rate"] > 180
