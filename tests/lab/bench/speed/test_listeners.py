"""Listeners, voices and the search of the capacity, with targets whose times are known."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from nightingale.engine.load import load_noise
from nightingale.engine.tts import TTS
from nightingale.errors import ConfigError, EngineFault
from nightingale.models.chatterbox.presets import PRESETS
from nightingale_lab.bench.speed import voices
from nightingale_lab.bench.speed.capacity import CapacityLimits, find_capacity
from nightingale_lab.bench.speed.cold import cold_rows
from nightingale_lab.bench.speed.listeners import LEAST_CALLERS, Call, measure_listeners, run_calls
from nightingale_lab.bench.speed.listeners_run import ListenersPlan, measure_voices
from nightingale_lab.bench.speed.memory import memory_now_mb
from nightingale_lab.bench.speed.request import Chunks, Details, Target
from nightingale_lab.bench.speed.voices import PROMPT_TOKENS, derived_voice, new_voice_cost
from nightingale_lab.random_models import random_voice, tiny_preset

Answer = tuple[Chunks, Callable[[], Details]]


def test_listeners_are_measured_by_their_order_of_arrival() -> None:
    """Each of them is served after the one before it, and the player of the last one has underruns."""

    def target(text: str, seed: int) -> Answer:
        place = seed % 100

        def sound() -> Iterator[float]:
            time.sleep(0.05 * (place + 1))
            yield 0.1
            time.sleep(0.2 if place == 2 else 0.0)
            yield 0.1

        return sound(), Details

    row = measure_listeners([target], ["a", "b"], 3)
    first, second, third = row["ttfa_ms_by_arrival"]
    assert 50 <= first < 100 <= second < 150 <= third
    assert (row["sentences"], row["underruns"]) == (6, 2), "a first round is not counted"
    assert (row["stalled_listeners"], row["stalled_share"]) == (1, pytest.approx(1 / 3, abs=1e-3))
    assert row["ttfa_ms_p95"] >= 150


def test_a_listener_that_fails_is_not_hidden() -> None:
    def target(text: str, seed: int) -> Answer:
        if seed % 100 == 1:
            return (1 / seconds for seconds in [0.0]), Details
        return iter([1.0]), Details

    with pytest.raises(ZeroDivisionError):
        measure_listeners([target], ["a"], 2)


def test_each_listener_has_the_voice_of_its_place() -> None:
    seeds_by_voice: dict[str, set[int]] = {}

    def voiced(name: str) -> Target:
        def target(text: str, seed: int) -> Answer:
            seeds_by_voice.setdefault(name, set()).add(seed % 100)
            return iter([0.01]), Details

        return target

    row = measure_listeners([voiced("a"), voiced("b")], ["text"], 3, rounds=2)
    assert seeds_by_voice == {"a": {0, 2}, "b": {1}}
    assert (row["listeners"], row["voices"], row["sentences"]) == (3, 2, 6)


def test_random_callers_arrive_at_the_rate_that_keeps_the_wanted_number_listening() -> None:
    """A sentence of 0.1 s and five listeners: a caller every 20 ms; the first five are not counted."""
    arrivals, lock = list[float](), threading.Lock()

    def target(text: str, seed: int) -> Answer:
        with lock:
            arrivals.append(time.perf_counter())
        return iter([0.1]), Details

    row = measure_listeners([target], ["a", "b"], 5, arrivals="poisson", rounds=8)
    calls = np.diff(arrivals[2:])  # two requests measure the length of a sentence
    assert len(calls) + 1 == 5 + 40
    assert row["sentences"] == 40
    assert 0.01 < float(calls.mean()) < 0.04
    assert float(calls.std()) > 0.3 * float(calls.mean()), "they are not evenly spaced"
    few = measure_listeners([target], ["a"], 1, arrivals="poisson", rounds=1)
    assert few["sentences"] == LEAST_CALLERS


def test_a_call_that_is_refused_ends_the_run() -> None:
    def target(text: str, seed: int) -> Answer:
        if seed == 1:
            raise EngineFault("the queue is full")
        return iter([0.01]), Details

    with pytest.raises(EngineFault):
        run_calls([Call(target, "a", 0), Call(target, "a", 1)])


def server_of(capacity: int, tried: list[int], **broken: Any) -> Callable[[int], dict[str, Any]]:
    def measure(listeners: int) -> dict[str, Any]:
        tried.append(listeners)
        fine = {"listeners": listeners, "ttfa_ms_p95": 300.0, "stalled_share": 0.0}
        return fine if listeners <= capacity else {**fine, **broken}

    return measure


@pytest.mark.parametrize("capacity", [1, 2, 5, 37, 64, 100])
@pytest.mark.parametrize("start", [1, 16, 128])
def test_the_largest_number_within_the_limits_is_found(capacity: int, start: int) -> None:
    tried: list[int] = []
    measure = server_of(capacity, tried, ttfa_ms_p95=501.0)
    found = find_capacity(measure, CapacityLimits(), start=start, precision=0.0)
    assert found["listeners"] == capacity
    assert found["limited_by"] == "first audio p95 501 ms"
    assert len(tried) == len(set(tried)) == len(found["tried"])
    near = find_capacity(server_of(capacity, []), CapacityLimits(), most=capacity)
    assert near["listeners"] >= 0.94 * capacity
    assert "no more than" in near["limited_by"]


def test_underruns_and_refusals_limit_the_capacity() -> None:
    assert find_capacity(server_of(10, [], stalled_share=0.011), CapacityLimits())["limited_by"] == (
        "underruns for 1.1 % of listeners"
    )

    def refusing(listeners: int) -> dict[str, Any]:
        if listeners > 3:
            raise EngineFault("the queue is full")
        return {"listeners": listeners, "ttfa_ms_p95": 1.0, "stalled_share": 0.0}

    found = find_capacity(refusing, CapacityLimits())
    assert (found["listeners"], found["limited_by"]) == (3, "the queue is full")
    none = find_capacity(server_of(0, [], stalled_share=1.0), CapacityLimits(), start=8)
    assert none["listeners"] == 0


@pytest.mark.parametrize("name", ["multilingual", "turbo", "wren"])
def test_derived_voices_differ_and_have_prompts_of_ten_seconds(name: str) -> None:
    given = random_voice(PRESETS[name], prompt_tokens=30)
    one, two = (derived_voice(given, number, ten_seconds=True) for number in (1, 2))
    assert len({given.content_hash, one.content_hash, two.content_hash}) == 3
    assert derived_voice(given, 1, ten_seconds=True) == one
    assert len(derived_voice(given, 1).flow_prompt_ids) == 30
    assert len(one.flow_prompt_ids) == (30 if name == "wren" else PROMPT_TOKENS)
    assert len(one.prompt_ids) == len(given.prompt_ids)


def test_a_voice_that_was_not_used_before_is_compared_with_one_that_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: set[str] = set()

    def target_for(voice: Any) -> Target:
        def target(text: str, seed: int) -> Answer:
            new = voice.content_hash not in seen
            seen.add(voice.content_hash)

            def sound() -> Iterator[float]:
                time.sleep(0.3 if new else 0.0)
                yield 0.5

            return sound(), Details

        return target

    monkeypatch.setattr(voices, "memory_now_mb", lambda: {"memory_mb": 100.0 + 16.0 * len(seen)})
    voice = random_voice(tiny_preset(PRESETS["turbo"]))
    row = new_voice_cost(target_for, [derived_voice(voice, n) for n in range(4)], "a", voice)
    assert row["extra_ms"] > 100  # 300 on an idle machine
    assert row["kept_mb_per_voice"] == 16.0
    assert memory_now_mb()["memory_mb"] > 10


def test_a_number_of_voices_is_own_one_or_positive() -> None:
    assert ListenersPlan(voices="own").voices_of(16) == 16
    assert ListenersPlan(voices="one").voices_of(16) == 1
    assert ListenersPlan(voices="4").voices_of(16) == 4
    for wrong in ("0", "some", "-1"):
        with pytest.raises(ConfigError, match="own, one, or a number"):
            ListenersPlan(voices=wrong)


def test_an_engine_serves_listeners_with_their_own_voices() -> None:
    result: dict[str, Any] = {"listeners": [], "capacity": [], "new_voice": []}
    with TTS.over(load_noise(), "balanced") as tts:
        assert tts.default_voice is not None
        plan = ListenersPlan(levels=[1, 3], rounds=1, capacity=True, most=2)
        measure_voices(result, tts, plan, who="me", voices=[tts.default_voice])
    assert [(row["listeners"], row["voices"]) for row in result["listeners"]] == [(1, 1), (3, 3)]
    assert result["capacity"][0]["listeners"] == 2
    assert result["new_voice"][0]["voices"] == 5


def test_a_machine_is_new_to_the_first_process_only() -> None:
    rows = cold_rows({"model": "noise", "profile": "exact"}, "Hello.")
    assert [row["run"] for row in rows] == ["first on this machine", "again"]
    assert all(row["process_to_sound_ms"] > row["first_ttfa_ms"] > 0 for row in rows)
