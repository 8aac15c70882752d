"""The simulator of fleets: queues whose answer is known, and the policy of the cluster."""

from __future__ import annotations

import numpy as np
import pytest

from nightingale_lab.bench.fleet import TRACES, Fleet, bursts, diurnal, poisson, simulate

FIXED = Fleet(capacity=1, load_s=0.0, least=1, largest=1, queue=10**6)


def test_one_place_serves_one_after_the_other() -> None:
    arrivals = np.zeros(100, np.int64)
    arrivals[0] = 3
    result = simulate(arrivals, 1.0, [10.0], FIXED, start=1)
    assert result.waits_s == {"p50": 10.0, "p95": 20.0, "p99": 20.0}
    assert result.wait_mean_s == 10.0
    assert result.waited == pytest.approx(2 / 3)
    assert result.listeners_mean == pytest.approx(30 / 100)


def test_waits_of_random_arrivals_at_one_place_are_those_of_queueing_theory() -> None:
    """M/D/1: the mean wait is rho / (2 (1 - rho)) of the length of an answer."""
    arrivals = poisson(0.5, 100_000, 0.1, seed=3)
    result = simulate(arrivals, 0.1, [1.0], FIXED, start=1, warm_up_s=100)
    assert result.wait_mean_s == pytest.approx(0.5 / (2 * 0.5), rel=0.1)
    assert result.listeners_mean == pytest.approx(0.5, rel=0.05)


def test_a_full_queue_refuses() -> None:
    arrivals = np.array([10] + [0] * 20)
    fleet = Fleet(capacity=2, load_s=0.0, least=1, largest=1, queue=3)
    assert simulate(arrivals, 1.0, [5.0], fleet, start=1).refused == pytest.approx(0.5)


def test_replicas_are_added_after_their_load_time_and_removed_after_the_delay() -> None:
    fleet = Fleet(capacity=10, load_s=30.0, upscale_delay_s=5.0, downscale_delay_s=60.0, queue=10**6)
    arrivals = np.concatenate([np.full(300, 4), np.zeros(300, np.int64)])
    result = simulate(arrivals, 1.0, [10.0], fleet, start=1)
    assert result.gpus_peak >= 5  # 40 listeners at four fifths of 10
    assert result.waits_s["p99"] > 20, "the first ones wait for replicas that load"
    assert 2 < result.gpus_mean < result.gpus_peak
    assert result.cost_per_hour == result.gpus_mean


@pytest.mark.parametrize("name", TRACES)
def test_traces_are_the_same_for_the_same_seed(name: str) -> None:
    trace = TRACES[name]
    assert np.array_equal(trace(5.0, 3600, 1.0, seed=1), trace(5.0, 3600, 1.0, seed=1))
    assert not np.array_equal(trace(5.0, 3600, 1.0, seed=1), trace(5.0, 3600, 1.0, seed=2))


def test_traces_have_their_shapes() -> None:
    day = diurnal(100.0, 86_400, 60.0)
    assert day[len(day) // 2] > 3 * day[0]
    hour = bursts(100.0, 1800, 1.0)
    assert hour[-60:].mean() > 2.5 * hour[:-60].mean()
