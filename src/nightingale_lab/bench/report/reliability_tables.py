"""Tables of docs/reliability.md: soak, overload, processes, memory, injected faults and fuzzing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nightingale_lab.bench.report.markdown import measured, number
from nightingale_lab.bench.report.rows import Line


def soak(lines: Sequence[Line]) -> str:
    """Return the checks of the last soak, and what its clients met."""
    if not lines:
        return measured(lines, "soak", [], _checks)
    checks = measured(lines, "soak", ["check", "value", "bound", ""], _checks)
    clients = measured(lines, "soak", ["client: outcome", "count"], lambda line: line["outcomes"].items())
    slowest = measured(
        lines, "soak", ["client", "slowest answer, s"], lambda line: line.get("longest_s", {}).items()
    )
    held = measured(lines, "soak", ["phase", "memory, MB", "threads", "descriptors", "unloaded, MB"], _phases)
    return "\n\n".join(text.partition("\n\n*")[0] for text in (checks, clients, slowest)) + f"\n\n{held}"


def _checks(line: Line) -> Iterable[Sequence[object]]:
    for check in line["checks"]:
        yield check["what"], check["value"], check["bound"], "pass" if check["passed"] else "**fail**"
    load = line.get("load_1m")
    if isinstance(load, dict):
        yield "load average of the machine: median, highest", f"{load['median']}, {load['max']}", "", ""


def _phases(line: Line) -> Iterable[Sequence[object]]:
    for place, phase in enumerate(line["phases"], start=1):
        loaded, unloaded = phase["loaded"], phase["unloaded"]["rss_mb"]
        last = place == len(line["phases"])
        yield place, *(number(value) for value in loaded.values()), None if last else number(unloaded)


def overload(lines: Sequence[Line]) -> str:
    """Return the last overload."""

    def body(line: Line) -> Iterable[Sequence[object]]:
        yield "listeners that the server can supply, as measured", line["capacity"]
        yield "listeners", line["listeners"]
        yield "answers; refused with 429", f"{line['answers']}; {line['statuses'].get('429', 0)}"
        yield "answers with underruns", line["answers_with_underruns"]
        yield "longest silence caused by underruns", f"{line['longest_stall_s']:.2f} s"
        yield "first audio: p50, p95", " s, ".join(str(one) for one in line["first_audio_s"].values()) + " s"
        yield (
            "seconds of audio per second: least, median",
            ", ".join(str(number(one)) for one in line["rate"].values()),
        )
        yield (
            "load average of the machine: median, highest",
            ", ".join(str(one) for one in line["load_1m"].values()),
        )

    return measured(lines, "overload", ["", "measured"], body)


def processes(lines: Sequence[Line]) -> str:
    """Return one process and one for each core side by side, by number of listeners."""

    names = ("listeners", "processes", "audio_s_per_s", "first_audio_p95_ms", "underruns", "memory_mb")

    def body(line: Line) -> Iterable[Sequence[object]]:
        return sorted(tuple(row[name] for name in names) for row in line["rows"])

    head = ["listeners", "processes", "audio, s per s", "first audio p95, ms", "underruns", "memory, MB"]
    return measured(lines, "processes", head, body)


def memory(lines: Sequence[Line]) -> str:
    """Return the memory by number of requests, and the checks."""

    def body(line: Line) -> Iterable[Sequence[object]]:
        for row in line["rows"]:
            yield f"{row['requests']:,}", number(row["rss_mb"]), row["threads"], row["descriptors"]
        for name, usage in zip(("unloaded", "loaded and unloaded again"), line["unloaded"], strict=True):
            yield name, number(usage["rss_mb"]), usage["threads"], usage["descriptors"]

    if not lines:
        return measured(lines, "memory", [], body)
    table = measured(lines, "memory", ["after requests", "memory, MB", "threads", "descriptors"], body)
    checks = measured(lines, "memory", ["check", "value", "bound", ""], _checks)
    return f"{table.partition(chr(10) * 2 + '*')[0]}\n\n{checks}"


def faults(lines: Sequence[Line]) -> str:
    """Return the last faults by call site."""

    def body(line: Line) -> Iterable[Sequence[object]]:
        for row in line["rows"]:
            counts = [row[name] for name in ("fired", "right", "failed", "cancelled", "problems")]
            yield row["site"], row["kind"], *counts, f"{row['slowest_recovery_s']:.2f} s"
        total = [
            *(line["total"][name] for name in ("fired", "right", "failed", "cancelled")),
            line["problem_count"],
        ]
        yield "**all**", "", *total, f"{line['slowest_recovery_s']:.2f} s"

    head = ["call site", "fault", "faults", "right", "failed", "cancelled", "disturbed", "back after"]
    return measured(lines, "faults", head, body)


def fuzz(lines: Sequence[Line]) -> str:
    """Return the last run of each target."""
    real = [line for line in lines if not line.get("tiny")]
    rows = {name: row for line in real for name, row in line["rows"].items()}

    def body(line: Line) -> Iterable[Sequence[object]]:
        for name, row in line["rows"].items():
            found = len(row["findings"])
            yield (
                name,
                number(row["seconds"]),
                f"{row['inputs']:,}",
                row["lines"],
                f"{row['slowest_s']:.2f} s",
                found,
            )

    head = ["reader", "seconds", "inputs", "lines reached", "slowest input", "findings"]
    return measured([{**line, "rows": rows} for line in real[-1:]], "fuzz", head, body)
