"""The clock that everything in the engine reads. It is passed on from where an engine is opened."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Return the time in seconds since some moment in the past. It never goes back."""


def system_clock() -> float:
    """Return the time of `time.perf_counter`, which backends measure their stages with."""
    return time.perf_counter()
