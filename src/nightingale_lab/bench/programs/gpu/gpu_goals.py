"""The goals of gpu_engine.py, and its table: upstream, must, aim and what was reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nightingale_lab.bench.runner import print_table


class GpuGoal(NamedTuple):
    what: str
    row: str
    """Name of the row of the measurements."""
    must: float | None = None
    aim: float | None = None
    sign: str = "≤"


M, T = "multilingual", "turbo"
GOALS = (
    GpuGoal("64 listeners, own voices, block: audio s/s", f"{M}, own voices, block: audio s/s", 80, 200, "≥"),
    GpuGoal("the same: first audio p95, ms", f"{M}, own voices, block: first audio p95, ms", 900, 400),
    GpuGoal("the same: listeners with underruns", f"{M}, own voices, block: listeners with underruns", 0, 0),
    GpuGoal(
        "64 listeners, own voices, segment: audio s/s", f"{M}, own voices, segment: audio s/s", 180, 300, "≥"
    ),
    GpuGoal("the same: first audio p95, ms", f"{M}, own voices, segment: first audio p95, ms", 1500, 900),
    GpuGoal("most listeners, block, together", f"{M}: most listeners, together", 32, 96, "≥"),
    GpuGoal("most listeners, block, poisson", f"{M}: most listeners, poisson", None, None, "≥"),
    GpuGoal("Turbo: most listeners, block, together", f"{T}: most listeners, together", 96, 256, "≥"),
    GpuGoal("Turbo: most listeners, block, poisson", f"{T}: most listeners, poisson", None, None, "≥"),
    GpuGoal("new voice: extra first audio, ms", f"{M}, new voice: extra first audio, ms", 100, 30),
    GpuGoal("new voice: memory kept, MB", f"{M}, new voice: memory kept, MB", 300, 64),
    GpuGoal("64 listeners, own voices: GPU memory, GiB", f"{M}, own voices, block: GPU memory, GiB", 60, 30),
    GpuGoal("64 listeners, one voice, block: audio s/s", f"{M}, one voice, block: audio s/s", 155, 250, "≥"),
    GpuGoal("the same: listeners with underruns", f"{M}, one voice, block: listeners with underruns", 0, 0),
    GpuGoal("one listener: T3 step, ms", f"{M}, fast: T3 step, ms", 0.9, 0.5),
    GpuGoal("one listener: sentence, ms", f"{M}, fast: sentence, ms", 190, 100),
    GpuGoal("one listener: first audio p50, ms", f"{M}, fast: first audio p50, ms", 48, 30),
    GpuGoal("Turbo, one listener: T3 step, ms", f"{T}, fast: T3 step, ms"),
    GpuGoal("Turbo, one listener: sentence, ms", f"{T}, fast: sentence, ms", 120, 70),
    GpuGoal("Turbo, one listener: first audio p50, ms", f"{T}, fast: first audio p50, ms", 32, 20),
    GpuGoal("default profile: sentence, ms", f"{M}, default: sentence, ms", 200, 130),
    GpuGoal(
        "default profile: first audio of 3 sentences, ms", f"{M}, default: first audio of 3, ms", 200, 130
    ),
    GpuGoal("Turbo, default profile: sentence, ms", f"{T}, default: sentence, ms"),
    GpuGoal("files to first audio, first on a machine, s", f"{M}: files to first audio, first, s", 20, 8),
    GpuGoal("files to first audio, again, s", f"{M}: files to first audio, again, s", 6, 3),
)


UPSTREAM = {
    f"{family}, {profile}: {what}": f"{family}, upstream: {what}"
    for family in (M, T)
    for profile in ("fast", "default")
    for what in ("T3 step, ms", "sentence, ms")
}
"""Upstream's row beside ours."""


def table(rows: Mapping[str, float], listeners: int) -> dict[str, dict[str, Any]]:
    """Return what was reached, by goal. listeners: how many "64 listeners" were in this run."""
    found: dict[str, dict[str, Any]] = {}
    before = ""
    for goal in GOALS:
        before = before if goal.what.startswith("the same") else goal.what.rpartition(":")[0]
        what = goal.what.replace("the same", before).replace("64", str(listeners))
        reached = rows.get(goal.row)
        theirs = rows.get(UPSTREAM.get(goal.row, ""))
        found[what] = {
            "upstream": theirs and round(theirs, 2),
            "sign": goal.sign,
            "must": goal.must,
            "aim": goal.aim,
            "reached": None if reached is None else round(reached, 3),
            "must_met": _met(reached, goal.must, goal.sign),
            "aim_met": _met(reached, goal.aim, goal.sign),
        }
    return found


def _met(reached: float | None, bound: float | None, sign: str) -> bool | None:
    if reached is None or bound is None:
        return None
    return reached >= bound if sign == "≥" else reached <= bound


def print_goals(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the table of goals, each with what was reached and whether it is met."""

    def verdict(row: Mapping[str, Any]) -> str:
        if row["must_met"] is None:
            return ""
        return "aim" if row["aim_met"] else "must" if row["must_met"] else "MISSED"

    head = ("upstream", "must", "aim", "reached")
    rows = [(what, *(row[name] for name in head), verdict(row)) for what, row in found.items()]
    print_table("Goals", ("", *head, ""), rows)
