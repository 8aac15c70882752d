"""Stored lines to table rows and plots: the newest of each kind, speed beside quality, and trends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nightingale_lab.bench.store import commit_label

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """One model in one profile."""

    model: str
    profile: str
    speed: Mapping[str, Any] = field(default_factory=dict)
    """One request at a time with a short text."""
    memory_mb: float | None = None
    verify: Line | None = None
    quality: Mapping[str, Any] = field(default_factory=dict)
    """From `verify` of this profile, or of another profile that was compared with it."""


def peers_apart(bench: Sequence[Line]) -> list[Line]:
    """Split the peers of each line off, as models of their own."""
    found: list[Line] = []
    kinds = ("lengths", "concurrency", "cold")
    for line in bench:
        names = [peer["who"] for peer in line.get("peers", ())]
        own = {kind: [row for row in line.get(kind, ()) if row["who"] not in names] for kind in kinds}
        found.append({**line, **own})
        for name in names:
            rows = {kind: [row for row in line.get(kind, ()) if row["who"] == name] for kind in kinds}
            theirs = {kind: [{**row, "who": "peer"} for row in held] for kind, held in rows.items()}
            found.append({**line, **theirs, "model": name, "distance": []})
    return found


def newest(lines: Sequence[Line], model: str, who: str, kind: str) -> Line | None:
    """Return the last line with rows of this kind for this model and profile."""
    for line in reversed(lines):
        if line.get("model") == model and any(row["who"] == who for row in line.get(kind, ())):
            return line
    return None


def pairs(bench: Sequence[Line], verify: Sequence[Line]) -> list[tuple[str, str]]:
    """Return each (model, profile) that was measured or verified, oldest first."""
    found: dict[tuple[str, str], None] = {}
    for line in bench:
        for row in [*line.get("lengths", ()), *line.get("concurrency", ())]:
            found[str(line.get("model")), row["who"]] = None
    for line in verify:
        found[str(line["model"]), line["profile"]] = None
    return list(found)


def table_rows(bench: Sequence[Line], verify: Sequence[Line]) -> list[ReportRow]:
    rows = []
    for model, who in pairs(bench, verify):
        line = newest(bench, model, who, "lengths")
        lengths = [row for row in line["lengths"] if row["who"] == who] if line else []
        cold = [row for row in (line or {}).get("cold", ()) if row["who"] == who]
        checked = [one for one in verify if one["model"] == model and one["profile"] == who]
        rows.append(
            ReportRow(
                model=model,
                profile=who,
                speed=next((row for row in lengths if row["text"] == "short"), lengths[0] if lengths else {}),
                memory_mb=cold[-1].get("peak_memory_mb") if cold else None,
                verify=checked[-1] if checked else None,
                quality=checked[-1]["facts"] if checked else _as_reference(verify, model, who),
            )
        )
    return rows


def _as_reference(verify: Sequence[Line], model: str, profile: str) -> Mapping[str, Any]:
    for line in reversed(verify):
        if line["model"] == model and line.get("against") == profile:
            found: Mapping[str, Any] = line["facts"].get("against") or {}
            return found
    return {}


def series(bench: Sequence[Line], kind: str, x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    """Return the plotted lines: for each model and profile its newest rows, as (x, y)."""
    found = {}
    for model, who in pairs(bench, ()):
        line = newest(bench, model, who, kind)
        rows = [row for row in line[kind] if row["who"] == who] if line else []
        points = [(_value(row, x), row[y]) for row in rows if row.get(y) is not None]
        if points:
            found[f"{model}, {who}"] = sorted(points)
    return found


def _value(row: Mapping[str, Any], name: str) -> float:
    """Return a column; `seconds` is that of one utterance."""
    if name == "seconds":
        return float(row["audio_seconds"]) / max(1, int(row["requests"]))
    return float(row[name])


def trend(bench: Sequence[Line], y: str) -> tuple[dict[str, list[tuple[float, float]]], list[str]]:
    """Return a value of the short text by run for each machine, and the commits of the runs."""
    found: dict[str, list[tuple[float, float]]] = {}
    commits = [commit_label(line) for line in bench]
    for number, line in enumerate(bench, start=1):
        for row in line.get("lengths", ()):
            if row.get("text") == "short" and row.get(y) is not None:
                machine = line.get("machine", {})
                where = machine.get("gpu") or f"{machine.get('cores', '?')} × {machine.get('cpu', '?')}"
                found.setdefault(f"{line['model']}, {row['who']} on {where}", []).append((number, row[y]))
    return found, commits
