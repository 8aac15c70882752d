"""Counts of a batch, in one small actor: rows that are done, and rows whose worker died while it spoke them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nightingale.errors import NightingaleError

SETTLED = -1


class Tally:
    """Counts over all workers. A row that was begun and not ended has ended its worker."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()
        self._settled: set[str] = set()
        self._totals: Counter[str] = Counter()
        self._first_s = self._last_s = 0.0
        self._failure: NightingaleError | None = None

    def begin(self, rows: Sequence[str]) -> list[int]:
        """Return how many workers each row has ended, -1 if it is done, and count those that are new as begun."""
        self._first_s = self._first_s or time.monotonic()
        before = [SETTLED if row in self._settled else self._begun[row] for row in rows]
        self._begun.update(row for row, count in zip(rows, before, strict=True) if count == 0)
        return before

    def begin_again(self, row: str) -> None:
        """Count a row that is spoken alone, because a worker has died before."""
        self._begun[row] += 1

    def end(self, rows: Sequence[str]) -> None:
        """Forget rows that are done."""
        for row in rows:
            self._begun.pop(row, None)

    def settle(self, row: str) -> None:
        """Remember that a row is done although its batch may be repeated."""
        self._settled.add(row)

    def add(self, rows: int, failed: int, chars: int, seconds: float) -> None:
        self._last_s = time.monotonic()
        self._totals.update(rows=rows, failed=failed, chars=chars)
        self._totals["seconds"] += seconds  # type: ignore[assignment]

    def fail(self, error: NightingaleError) -> None:
        """Remember why a worker has given up."""
        self._failure = self._failure or error

    def failure(self) -> NightingaleError | None:
        """Return why the first worker has given up."""
        return self._failure

    def totals(self) -> dict[str, float]:
        """Return rows, failed rows, characters, seconds of audio, and the time from the first row to the last."""
        counts = {name: float(self._totals[name]) for name in ("rows", "failed", "chars", "seconds")}
        return {**counts, "speaking_s": max(0.0, self._last_s - self._first_s)}


class RemoteTally:
    """Calls the actor from a worker and waits for the answers, so that a death cannot lose a count."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            import ray

            return ray.get(getattr(self._actor, name).remote(*args))

        return call
