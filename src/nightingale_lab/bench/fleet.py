"""A simulator of a fleet of replicas: how many GPUs a number of listeners needs, how long they wait, what it costs.

Time passes in steps. Listeners arrive by a trace, wait in one queue for a free place on any replica, and occupy it
for as long as their answer plays; the router sends each request to the least loaded replica, so one queue for all is
a fair picture. The number of replicas follows the policy of `nightingale.ray.autoscaling` with its delays, and a new
replica takes requests when its model is loaded. `python -m nightingale_lab.bench cluster` compares it with a real run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightingale.ray.autoscaling import replicas_for

Steps = NDArray[np.int64]
DAY_S = 86_400.0
BURST_EVERY_S, BURST_S, BURST_FACTOR = 1800.0, 60.0, 3.0
NIGHT_SHARE = 0.2
"""The share of the day's peak that listens at night."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas, one per GPU, and the policy for their number."""

    capacity: int
    """Listeners that one replica supplies."""
    load_s: float
    """Time from the decision to add a replica until it serves: a machine, its files, the model."""
    least: int = 1
    largest: int = 10**9
    queue: int = 64
    """Requests that may wait, for each replica."""
    upscale_delay_s: float = 5.0
    downscale_delay_s: float = 300.0
    gpu_hour: float = 1.0
    """Price of a GPU for an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    """The outcome of a simulation."""

    gpus_mean: float
    gpus_peak: int
    listeners_mean: float
    waits_s: dict[str, float]
    """Percentiles of the time in the queue: p50, p95, p99."""
    wait_mean_s: float
    waited: float
    """The share of requests that waited at all."""
    refused: float
    """The share of requests that were answered 429."""
    cost_per_hour: float


class Replicas:
    """The number of replicas over time: those that serve, and those that load."""

    def __init__(self, fleet: Fleet, start: int) -> None:
        self._fleet, self.ready = fleet, start
        self._loading: deque[float] = deque()
        self._changing = 0
        self._since_s = 0.0

    @property
    def all(self) -> int:
        return self.ready + len(self._loading)

    def step(self, now_s: float, listeners: float) -> None:
        """Finish what is loaded, and add or remove replicas as the policy and its delays say."""
        fleet = self._fleet
        while self._loading and self._loading[0] <= now_s:
            self._loading.popleft()
            self.ready += 1
        wanted = min(max(desired(listeners, fleet.capacity, self.all), fleet.least), fleet.largest)
        direction = (wanted > self.all) - (wanted < self.all)
        if direction != self._changing:
            self._changing, self._since_s = direction, now_s
        if direction > 0 and now_s - self._since_s >= fleet.upscale_delay_s:
            self._loading.extend([now_s + fleet.load_s] * (wanted - self.all))
        elif direction < 0 and now_s - self._since_s >= fleet.downscale_delay_s:
            self._loading.clear()
            self.ready = min(self.ready, wanted)


def desired(listeners: float, capacity: int, current: int) -> int:
    """Return what the cluster's own policy says."""
    metrics = {"capacity": {"a": float(capacity)}, "listeners": {"a": float(listeners)}}
    context: Any = SimpleNamespace(
        aggregated_metrics=metrics, total_queued_requests=0.0, target_num_replicas=current
    )
    return replicas_for(context)[0]


def simulate(
    arrivals: Steps,
    step_s: float,
    durations_s: Sequence[float],
    fleet: Fleet,
    *,
    start: int,
    warm_up_s: float = 0.0,
    seed: int = 0,
) -> FleetResult:
    """Simulate a fleet.

    Args:
        arrivals: Requests that arrive in each step.
        step_s: Length of a step.
        durations_s: Lengths of answers, equally likely.
        fleet: The replicas and the policy.
        start: Replicas at the beginning.
        warm_up_s: Time at the beginning that is not counted.
        seed: Seed of the answers' lengths.
    """
    rng = np.random.default_rng(seed)
    lengths = np.maximum(1, np.round(np.array(durations_s) / step_s).astype(int))
    shares = np.full(len(lengths), 1 / len(lengths))
    ending = np.zeros(len(arrivals) + int(lengths.max()) + 1, np.int64)
    replicas, queue = Replicas(fleet, start), deque[list[int]]()
    running = waiting = peak = refused = seen = 0
    used_s = held_s = counted_s = 0.0
    waits: dict[int, int] = {}
    for step, count in enumerate(arrivals.tolist()):
        now_s, counts = step * step_s, step * step_s >= warm_up_s
        running -= int(ending[step])
        places = max(0, replicas.ready * fleet.capacity + replicas.ready * fleet.queue - running - waiting)
        accepted = min(count, places if replicas.ready else count)
        if accepted:
            queue.append([step, accepted])
            waiting += accepted
        free = max(0, replicas.ready * fleet.capacity - running)
        while queue and free:
            arrived, held = queue[0]
            taken = min(held, free)
            ended = rng.multinomial(taken, shares)
            np.add.at(ending, step + lengths, ended)
            running, waiting, free = running + taken, waiting - taken, free - taken
            if counts:
                waits[step - arrived] = waits.get(step - arrived, 0) + taken
            if taken == held:
                queue.popleft()
            else:
                queue[0][1] -= taken
        replicas.step(now_s, running + waiting)
        if counts:
            seen, refused = seen + count, refused + count - accepted
            used_s += replicas.all * step_s
            held_s += running * step_s
            counted_s += step_s
            peak = max(peak, replicas.all)
    mean = used_s / counted_s
    return FleetResult(
        gpus_mean=mean,
        gpus_peak=peak,
        listeners_mean=held_s / counted_s,
        waits_s={f"p{share}": _percentile(waits, share / 100) * step_s for share in (50, 95, 99)},
        wait_mean_s=step_s * sum(wait * count for wait, count in waits.items()) / max(1, sum(waits.values())),
        waited=1 - waits.get(0, 0) / max(1, sum(waits.values())),
        refused=refused / max(1, seen),
        cost_per_hour=mean * fleet.gpu_hour,
    )


def _percentile(counts: dict[int, int], share: float) -> int:
    left = math.ceil(share * sum(counts.values()))
    for value in sorted(counts):
        left -= counts[value]
        if left <= 0:
            return value
    return 0


def poisson(rate: float, seconds: float, step_s: float, seed: int = 0) -> Steps:
    """Return arrivals at a constant mean rate per second."""
    return _counts(np.full(round(seconds / step_s), rate * step_s), seed)


def diurnal(rate: float, seconds: float, step_s: float, seed: int = 0) -> Steps:
    """Return arrivals that follow the hours of a day; `rate` is that of the peak."""
    at_s = np.arange(round(seconds / step_s)) * step_s
    share = NIGHT_SHARE + (1 - NIGHT_SHARE) * (1 - np.cos(2 * np.pi * at_s / DAY_S)) / 2
    return _counts(rate * share * step_s, seed)


def bursts(rate: float, seconds: float, step_s: float, seed: int = 0) -> Steps:
    """Return arrivals at a constant rate that triples for a minute every half an hour."""
    at_s = np.arange(round(seconds / step_s)) * step_s
    factor = np.where(at_s % BURST_EVERY_S >= BURST_EVERY_S - BURST_S, BURST_FACTOR, 1.0)
    return _counts(rate * factor * step_s, seed)


def _counts(means: NDArray[np.float64], seed: int) -> Steps:
    return np.random.default_rng(seed).poisson(means).astype(np.int64)


TRACES = {"poisson": poisson, "diurnal": diurnal, "bursts": bursts}
