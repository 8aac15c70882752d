"""Helpers for tests of the engine: open it with short utterances, and wait with a limit."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

from nightingale import TTS
from nightingale.backends.profiles import Profile
from nightingale.engine.load import Model
from nightingale.engine.scheduler import Scheduler
from nightingale.errors import NightingaleError

LIMIT_S = 30.0
"""Longest wait of a test: far more than any of them needs on a busy machine."""
TOKEN_SAMPLES = 960


def open_engine(model: Model, profile: str | Profile = "balanced", **defaults: Any) -> TTS:
    """Return an engine for a model with some of its defaults changed."""
    return TTS.over(model.with_defaults(**defaults), profile)


def wait_until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Wait for a condition and return whether it came true in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def is_idle(scheduler: Scheduler) -> bool:
    """Return whether no request waits for a slot or has one."""
    return not scheduler.waiting and not scheduler.running


def is_stalled(tts: TTS) -> bool:
    """Return whether all requests wait for text or for their listener. Between two steps alone is not enough:
    a block that is being rendered is neither ready nor in flight."""
    return all(job.parked for job in list(tts._worker._jobs.values())) and not tts._worker._has_work()


def is_drained(tts: TTS) -> bool:
    """Return whether the engine holds no request any more, after a while."""
    gc.collect()
    return wait_until(lambda: is_idle(tts._worker.scheduler) and not tts._worker._jobs)


def call_in_thread(function: Callable[[], object]) -> object:
    """Return the result of a call or the error it raised; fail if it does not return in time."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(function())
        except NightingaleError as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert results, "the call did not return"
    return results[0]
