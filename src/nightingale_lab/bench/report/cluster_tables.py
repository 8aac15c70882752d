"""Tables of docs/performance.md about clusters: a real one on one machine, and simulated fleets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nightingale_lab.bench.report.markdown import measured, number
from nightingale_lab.bench.report.rows import Line

SECTIONS = ("latency", "growth", "arrivals", "kill", "batch")


def cluster(lines: Sequence[Line]) -> str:
    """Return what `python -m nightingale_lab.bench cluster` has measured last."""
    # A run may measure some sections only: the others are those of the run before it.
    merged: Line = {name: value for line in lines if not line.get("tiny") for name, value in line.items()}
    complete = [merged] if all(name in merged for name in SECTIONS) else []
    return measured(complete, "cluster", ["", "measured"], _cluster_rows)


def _cluster_rows(line: Line) -> Iterable[Sequence[object]]:
    added, kill, batch = line["latency"], line["kill"], line["batch"]
    yield (
        "first audio through the proxy over the same server without Ray, p50",
        f"{added['added_p50_ms']:.1f} ms",
    )
    yield "the same, p95", f"{added['added_p95_ms']:.1f} ms"
    for replicas, row in line["growth"].items():
        yield f"listeners supplied, replicas with capacity for 8 each: {replicas}", number(row["listeners"])
        if replicas != "1":
            yield f"the same, over {replicas} times one replica", f"{row['efficiency']:.3f}"
    yield (
        f"a replica killed during {kill['streams']} streams: streams of the other one disturbed",
        kill["others_disturbed"],
    )
    yield "requests without audio yet that failed when a replica was killed", kill["waiting_failed"]
    yield "from the kill until a new replica answers", f"{kill['new_replica_s']:.1f} s"
    yield f"batch of {batch['rows']} rows, from the first to the last", f"{batch['speaking_s']:.1f} s"
    yield "the engine alone, before that batch", f"{batch['engine_before_s']:.1f} s"
    yield "the engine alone, after it", f"{batch['engine_after_s']:.1f} s"
    yield "the batch over the mean of these", f"{100 * batch['overhead']:+.1f} %"
    for name in ("measured", "simulated"):
        found = line["arrivals"][name]
        yield f"random arrivals, {name}: listeners at once, mean", f"{found['listeners_mean']:.2f}"
        yield f"random arrivals, {name}: wait, mean", f"{found['wait_mean_s']:.2f} s"
        yield f"random arrivals, {name}: wait, p95", f"{found['wait_p95_s']:.2f} s"
        yield f"random arrivals, {name}: requests that waited", f"{100 * found['waited']:.0f} %"


def fleet(lines: Sequence[Line]) -> str:
    """Return what `python -m nightingale_lab.bench fleet` has simulated last."""

    def body(line: Line) -> Iterable[Sequence[object]]:
        for row in line["rows"]:
            waits = [f"{row['waits_s'][name]:.0f} s" for name in ("p50", "p95", "p99")]
            gpus = [f"{row['gpus_mean']:,.0f}", f"{row['gpus_peak']:,}"]
            refused, cost = f"{100 * row['refused']:.1f} %", f"{row['cost_per_hour']:,.0f}"
            yield row["trace"], f"{row['listeners']:,}", *gpus, *waits, refused, cost

    head = [
        "trace",
        "listeners",
        "GPUs, mean",
        "GPUs, peak",
        "wait p50",
        "p95",
        "p99",
        "refused",
        "cost per hour",
    ]
    return measured(lines, "fleet", head, body)
