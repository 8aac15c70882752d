"""CPU time of calls, for tests of growth. Other processes do not add to it, but they slow it down: bounds are wide."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_seconds(act: Callable[[], object], rounds: int = 1) -> float:
    """Return the CPU seconds that a call takes in this thread, the fewest of several rounds."""
    taken = []
    for _ in range(rounds):
        start_s = time.thread_time()
        act()
        taken.append(time.thread_time() - start_s)
    return min(taken)
