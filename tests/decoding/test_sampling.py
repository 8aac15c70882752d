"""Logits to a token. The expected rows were printed by the processors of transformers 5.2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest

from nightingale.decoding import sampling as steps
from nightingale.decoding.philox import stream_key
from nightingale.decoding.sampling import Logits, Seen, draw, guide, is_greedy, process_logits
from nightingale.types import Sampling

Step = Callable[[Logits, Seen], Logits]
LOGITS = [2.0, -1.0, 0.5, 3.0, -2.5, 1.0]
SEEN = [3, 3, 1, 3, 4]
OFF = Sampling(temperature=1.0, top_p=1.0, min_p=0.0, top_k=0, repetition_penalty=1.0, cfg_weight=0.0)


def row_of(logits: list[float]) -> Logits:
    return np.array(logits, np.float32)


def seen_row(size: int, ids: list[int]) -> Seen:
    row = np.zeros(size, np.bool_)
    row[ids] = True
    return row


def apply(step: Step, logits: list[float] = LOGITS, seen: list[int] = SEEN) -> list[float]:
    return [round(x, 5) for x in step(row_of(logits), seen_row(len(logits), seen)).tolist()]


def filter_of(step: Callable[[Logits, float], Logits], value: float) -> Step:
    return lambda logits, _: step(logits, value)


def sampler(order: Any, **changes: float) -> Step:
    return partial(process_logits, order=order, sampling=replace(OFF, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [(1.5, [2.0, -1.5, 0.5, 2.0, -3.75, 1.0]), (0.5, [2.0, -0.5, 0.5, 6.0, -1.25, 1.0])],
)
def test_an_id_seen_three_times_is_penalised_once(penalty: float, expected: list[float]) -> None:
    assert apply(partial(steps.penalize_repetition, penalty=penalty)) == expected


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.05, [2.0, -inf, 0.5, 3.0, -inf, 1.0]),
        (0.1, [2.0, -inf, -inf, 3.0, -inf, 1.0]),
        (0.2, [2.0, -inf, -inf, 3.0, -inf, -inf]),
        (1.0, [-inf, -inf, -inf, 3.0, -inf, -inf]),
    ],
)
def test_min_p_is_a_share_of_the_likeliest(share: float, expected: list[float]) -> None:
    assert apply(filter_of(steps.min_p, share)) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [-inf, -inf, -inf, 3.0, -inf, -inf]),
        (4, [2.0, -inf, 0.5, 3.0, -inf, 1.0]),
        (6, LOGITS),
        (1000, LOGITS),
    ],
)
def test_top_k_keeps_so_many(count: int, expected: list[float]) -> None:
    assert apply(filter_of(steps.top_k, count)) == expected


def test_top_k_keeps_ids_as_likely_as_its_last() -> None:
    assert apply(filter_of(steps.top_k, 2), [1.0, 3.0, 3.0, 0.0, 3.0], []) == [-inf, 3.0, 3.0, -inf, 3.0]


@pytest.mark.parametrize(
    ("mass", "expected"),
    [
        (0.6, [-inf, -inf, -inf, 3.0, -inf, -inf]),
        (0.65, [2.0, -inf, -inf, 3.0, -inf, -inf]),
        (0.9, [2.0, -inf, -inf, 3.0, -inf, 1.0]),
        (0.95, [2.0, -inf, 0.5, 3.0, -inf, 1.0]),
        (0.99, [2.0, -1.0, 0.5, 3.0, -inf, 1.0]),
    ],
)
def test_top_p_keeps_the_least_set_that_holds_the_mass(mass: float, expected: list[float]) -> None:
    assert apply(filter_of(steps.top_p, mass)) == expected


@pytest.mark.parametrize(
    "step",
    [
        filter_of(steps.top_p, 0.0),
        filter_of(steps.top_p, 1e-6),
        filter_of(steps.min_p, 1.0),
        filter_of(steps.top_k, 1),
    ],
)
def test_every_cut_keeps_at_least_one(step: Step) -> None:
    assert [x for x in apply(step) if x > -inf] == [3.0]


def test_a_step_leaves_its_input_alone() -> None:
    given, seen = row_of(LOGITS), seen_row(6, SEEN)
    for make in (
        partial(steps.penalize_repetition, penalty=2.0),
        filter_of(steps.min_p, 0.5),
        filter_of(steps.top_k, 2),
        filter_of(steps.top_p, 0.5),
    ):
        make(given, seen)
    assert given.tolist() == LOGITS


def test_chatterbox_penalises_before_it_cuts() -> None:
    cut = sampler("chatterbox", repetition_penalty=2.0, top_k=2)
    assert apply(cut, [4.0, 3.9, 3.8, -1.0], [0]) == [-inf, 3.9, 3.8, -inf]


def test_turbo_penalises_after_it_cuts() -> None:
    cut = sampler("turbo", repetition_penalty=2.0, top_k=2)
    assert apply(cut, [4.0, 3.9, 3.8, -1.0], [0]) == [2.0, 3.9, -inf, -inf]


def test_temperature_comes_before_min_p() -> None:
    assert apply(sampler("chatterbox", temperature=2.0, min_p=0.3), [2.0, 0.0, -1.0], []) == [1.0, 0.0, -inf]
    assert apply(sampler("chatterbox", temperature=1.0, min_p=0.3), [2.0, 0.0, -1.0], []) == [2.0, -inf, -inf]


def test_min_p_cuts_before_top_p_counts() -> None:
    # The two likeliest hold 0.85 of the whole, but 0.91 of the three that min-p leaves.
    assert apply(sampler("chatterbox", min_p=0.1, top_p=0.88)) == [2.0, -inf, -inf, 3.0, -inf, -inf]
    assert apply(sampler("chatterbox", min_p=0.0, top_p=0.88)) == [2.0, -inf, -inf, 3.0, -inf, 1.0]


def test_both_families_at_their_defaults_equal_the_processors_of_transformers() -> None:
    chatterbox = sampler("chatterbox", repetition_penalty=1.2, temperature=0.8, min_p=0.05, top_p=0.9)
    turbo = sampler("turbo", repetition_penalty=1.2, temperature=0.8, top_k=3, top_p=0.95)
    assert apply(chatterbox) == [2.5, -inf, -inf, 3.125, -inf, 1.25]
    assert apply(turbo) == [2.5, -inf, -inf, 3.125, -inf, 1.25]


def test_nothing_asked_is_nothing_done() -> None:
    assert apply(sampler("chatterbox")) == LOGITS
    assert apply(sampler("turbo")) == LOGITS


def test_guidance_moves_away_from_what_is_said_untold() -> None:
    both = np.array([[1.0, 2.0, 0.0], [0.0, 4.0, 0.0]], np.float32)
    assert guide(both, 0.5).tolist() == [1.5, 1.0, 0.0]
    assert guide(both[:1], 0.5).tolist() == [1.0, 2.0, 0.0]


def a_draw(logits: list[float], seed: int, *, greedy: bool = False) -> int:
    return draw(row_of(logits), None if greedy else stream_key(seed, "tokens"), 0)


def test_greedy_takes_the_likeliest_whatever_the_seed() -> None:
    assert {a_draw(LOGITS, seed, greedy=True) for seed in range(5)} == {3}


def test_sampled_ids_follow_the_probabilities() -> None:
    key = stream_key(1, "tokens")
    drawn = [draw(row_of([0.0, 1.0986, -inf]), key, number) for number in range(2000)]
    assert drawn.count(2) == 0
    assert 0.70 < drawn.count(1) / 2000 < 0.80  # 3 : 1


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("logits", [[0.0, float("nan"), 1.0], [0.0, inf, 1.0], [-inf, -inf, -inf]])
def test_what_is_no_number_is_not_drawn_from(logits: list[float], greedy: bool) -> None:
    with pytest.raises(ArithmeticError, match="not finite"):
        a_draw(logits, 1, greedy=greedy)


@pytest.mark.parametrize(("value", "greedy"), [(0.0, True), (1e-38, True), (1e-4, False), (0.8, False)])
def test_a_temperature_too_small_to_divide_by_is_greedy(value: float, greedy: bool) -> None:
    assert is_greedy(Sampling(temperature=value)) is greedy
    assert all(x > -inf for x in apply(sampler("chatterbox", temperature=value)))


@pytest.mark.parametrize("order", ["chatterbox", "turbo"])
def test_almost_no_temperature_is_almost_greedy(order: str) -> None:
    cold = sampler(order, temperature=1e-4, min_p=0.05)
    logits = [3.0, 2.99, 2.9, -5.0]
    drawn: Callable[[int], int] = lambda seed: a_draw(apply(cold, logits, []), seed)  # noqa: E731
    assert {drawn(seed) for seed in range(20)} == {0}
