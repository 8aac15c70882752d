"""Times of calls: the fastest of several, and ratios of two that take turns, which other processes disturb alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple


class Cost(NamedTuple):
    """The time that a call takes."""

    wall_s: float
    cpu_s: float
    """Processor time of the whole process, which other processes disturb less."""


def cost(act: Callable[[], object]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    act()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def cpu_ms(act: Callable[[], object], rounds: int = 1) -> float:
    """Return the fewest milliseconds of processor time of several calls."""
    return 1000 * min(cost(act).cpu_s for _ in range(rounds))


def ratio(rounds: int, over: Callable[[int], object], under: Callable[[int], object]) -> dict[str, Any]:
    """Return the median ratio of the costs of two calls, which take turns in going first."""
    pairs = []
    for round_ in range(rounds):
        acts = [partial(over, round_), partial(under, round_)]
        first, second = (cost(act) for act in (acts if round_ % 2 else reversed(acts)))
        pairs.append((first, second) if round_ % 2 else (second, first))
    walls = [above.wall_s / below.wall_s for above, below in pairs]
    return {
        "wall": round(statistics.median(walls), 3),
        "spread": [round(min(walls), 3), round(max(walls), 3)],
        "cpu": round(statistics.median(above.cpu_s / below.cpu_s for above, below in pairs), 3),
        "wall_s": round(pairs[-1][0].wall_s, 2),
    }
