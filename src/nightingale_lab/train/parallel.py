"""Work on many items by several processes, which are forked and so need no copies of the data."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

MIN_ITEMS = 4000
"""With fewer items, one process is faster."""
TIMEOUT_S = 90.0
"""After this time the calling process does the work itself."""
_work: Callable[[int, int], Any] | None = None


def _call(span: tuple[int, int]) -> Any:
    assert _work is not None
    return _work(*span)


def map_spans(work: Callable[[int, int], Any], count: int, *, workers: int | None = None) -> list[Any]:
    """Return work(first, end) of consecutive spans of 0 … count, in order.

    `work` may use numpy and Python only: CUDA does not survive a fork.
    """
    global _work
    workers = workers or min(10, max(1, (os.cpu_count() or 1) - 2))
    if workers == 1 or count < MIN_ITEMS or "fork" not in multiprocessing.get_all_start_methods():
        return [work(0, count)]
    size = -(-count // (2 * workers))
    spans = [(first, min(count, first + size)) for first in range(0, count, size)]
    _work = work
    try:
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            return pool.map_async(_call, spans, chunksize=1).get(timeout=TIMEOUT_S)
    except multiprocessing.TimeoutError:
        return [work(0, count)]
    finally:
        _work = None
