"""Calls of one session that take time and must not delay the engine's thread: they run in other threads, in order."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

MAX_THREADS: Final = 4
"""Threads that all sessions of the process share; they are started when they are needed."""


class SerialCalls:
    """Run calls one after another. Those of other sessions run at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = deque[Callable[[], None]]()
        self._running = False

    def submit(self, call: Callable[[], None]) -> None:
        """Run a call, which must not raise, after those that were submitted before."""
        with self._lock:
            self._calls.append(call)
            if self._running:
                return
            self._running = True
        try:
            _threads(os.getpid()).submit(self._run)
        except RuntimeError:  # the interpreter exits, and starts no more threads
            self._run()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._running = False
                    return
                call = self._calls.popleft()
            call()


@cache
def _threads(process_id: int) -> ThreadPoolExecutor:
    """Return the threads of a process: a fork does not inherit those of its parent."""
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=f"nightingale-{process_id}-calls")
