"""A run of `nightingale bench`: what is measured, in which order.

The result is a dictionary that grows with each row, so that an interrupted run keeps what it measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nightingale_lab.bench.speed.bench_texts import TEXTS
from nightingale_lab.bench.speed.load import Interrupted, growth, run_load
from nightingale_lab.bench.speed.request import Target, time_request

LOAD_TEXT = "short"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    lengths: Sequence[str] = tuple(TEXTS)
    """Keys of TEXTS, measured one request at a time."""
    levels: Sequence[int] = (1, 2, 4, 8)
    """Concurrency levels, measured with one short text."""
    rounds: int = 5
    """Requests of each length; at least twice the concurrency at each level."""

    def requests_at(self, level: int) -> int:
        return max(self.rounds, 2 * level)

    @property
    def requests(self) -> int:
        """All requests, for a progress bar."""
        return self.rounds * len(self.lengths) + sum(self.requests_at(level) for level in self.levels)


def new_result(**about: Any) -> dict[str, Any]:
    return {"kind": "bench", "complete": False, **about, "lengths": [], "concurrency": [], "growth": []}


def measure(
    result: dict[str, Any],
    target: Target,
    plan: BenchPlan,
    *,
    who: str,
    on_request: Callable[[], object] = lambda: None,
) -> None:
    """Add the rows of one target, named `who`, to the result.

    Raises:
        Interrupted: Ctrl-C, after the rows so far were added.
    """
    time_request(target, TEXTS[LOAD_TEXT], 0)  # warm up

    def add(kind: str, spoken: str, level: int, requests: int, **label: Any) -> dict[str, Any]:
        try:
            load = run_load(target, [spoken], concurrency=level, requests=requests, on_request=on_request)
        except Interrupted as stop:
            if stop.load.times:
                result[kind].append({"who": who, **label, **stop.load.row(), "complete": False})
            raise
        row = {"who": who, **label, **load.row()}
        if load.failures:
            row["first_failure"] = load.failures[0]
        result[kind].append(row)
        return row

    lengths = [
        add("lengths", TEXTS[length], 1, plan.rounds, text=length, chars=len(TEXTS[length]))
        for length in plan.lengths
    ]
    levels = [add("concurrency", TEXTS[LOAD_TEXT], level, plan.requests_at(level)) for level in plan.levels]
    result["growth"].append({"who": who, **_growth(lengths, levels)})


def _growth(lengths: Sequence[dict[str, Any]], levels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how cost grows with the length of the text and with the concurrency."""
    lengths = [row for row in lengths if row["total_ms_p50"]]
    levels = [row for row in levels if row["ttfa_ms_p50"]]
    seconds = [row["audio_seconds"] / row["requests"] for row in lengths]
    found: dict[str, Any] = {
        f"{name}_with_audio_seconds": growth(seconds, [row[f"{name}_p50"] for row in lengths])
        for name in ("total_ms", "ttfa_ms")
    }
    found["ttfa_ms_with_concurrency"] = growth(
        [row["concurrency"] for row in levels], [row["ttfa_ms_p50"] for row in levels]
    )
    alone = next((row["audio_seconds_per_s"] for row in levels if row["concurrency"] == 1), None)
    if alone:
        found["throughput_over_one"] = {
            str(row["concurrency"]): round(row["audio_seconds_per_s"] / alone, 3) for row in levels
        }
    return found
