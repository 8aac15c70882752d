"""A bench run: what to measure, in which order; and the result, which is valid at each moment.

The result is a dictionary that grows as rows are measured, so that a run that is stopped leaves what it had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nightingale_lab.bench.speed.load import Interrupted, crowd, growth
from nightingale_lab.bench.speed.request import Speaks, take
from nightingale_lab.bench.speed.texts import TEXTS

CROWD_TEXT = "short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    lengths: Sequence[str] = tuple(TEXTS)
    """Of TEXTS, one request at a time."""
    levels: Sequence[int] = (1, 2, 4, 8)
    """Requests at a time, of one short text."""
    rounds: int = 5
    """Requests of each length; at least twice as many as are made at a time."""

    def requests_at(self, level: int) -> int:
        return max(self.rounds, 2 * level)

    @property
    def requests(self) -> int:
        """In all, for a progress bar."""
        return self.rounds * len(self.lengths) + sum(self.requests_at(level) for level in self.levels)


def new_result(**about: Any) -> dict[str, Any]:
    return {"kind": "bench", "complete": False, **about, "lengths": [], "crowds": [], "growth": []}


def measure(
    result: dict[str, Any],
    speaks: Speaks,
    plan: Plan,
    *,
    who: str,
    on_request: Callable[[], object] = lambda: None,
) -> None:
    """Adds the rows of one speaker to the result. Interrupted after what it had measured was added."""
    take(speaks, TEXTS[CROWD_TEXT], 0)  # warm; its time is nobody's business

    def add(kind: str, texts: Sequence[str], level: int, requests: int, **label: Any) -> dict[str, Any]:
        try:
            done = crowd(speaks, texts, concurrency=level, requests=requests, on_request=on_request)
        except Interrupted as stop:
            if stop.crowd.took:
                result[kind].append({"who": who, **label, **stop.crowd.row(), "complete": False})
            raise
        row = {"who": who, **label, **done.row()}
        if done.failed:
            row["first_failure"] = done.failed[0]
        result[kind].append(row)
        return row

    lengths = [
        add("lengths", [TEXTS[length]], 1, plan.rounds, text=length, chars=len(TEXTS[length]))
        for length in plan.lengths
    ]
    crowds = [add("crowds", [TEXTS[CROWD_TEXT]], level, plan.requests_at(level)) for level in plan.levels]
    result["growth"].append({"who": who, **_growth(lengths, crowds)})


def _growth(lengths: Sequence[dict[str, Any]], crowds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How cost grows: with the length of the text, and with how many ask at a time."""
    spoken = [row for row in lengths if row["total_ms_p50"]]
    found: dict[str, Any] = {
        "total_ms_with_audio_seconds": growth(
            [row["audio_seconds"] / row["requests"] for row in spoken],
            [row["total_ms_p50"] for row in spoken],
        ),
        "ttfa_ms_with_audio_seconds": growth(
            [row["audio_seconds"] / row["requests"] for row in spoken], [row["ttfa_ms_p50"] for row in spoken]
        ),
    }
    served = [row for row in crowds if row["ttfa_ms_p50"]]
    found["ttfa_ms_with_concurrency"] = growth(
        [row["concurrency"] for row in served], [row["ttfa_ms_p50"] for row in served]
    )
    alone = next((row["audio_seconds_per_s"] for row in served if row["concurrency"] == 1), None)
    if alone:
        found["throughput_over_one"] = {
            str(row["concurrency"]): round(row["audio_seconds_per_s"] / alone, 3) for row in served
        }
    return found
