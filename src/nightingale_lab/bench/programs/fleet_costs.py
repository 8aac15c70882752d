"""GPUs, waits and cost of 1,000 to 1,000,000 listeners at once, simulated from the measured capacity of one GPU.

    python -m nightingale_lab.bench fleet --gpu-hour 3.00 --load-s 90
    python -m nightingale_lab.bench fleet --tiny        # two rows: proves that it runs

Traces: `poisson` has a constant rate, `diurnal` the hours of a day (the listeners are those of its peak), `bursts`
triple the rate for a minute every half an hour. Answers play 2 to 30 seconds. The capacity is the last measured
number of Turbo's listeners on one GPU in benchmarks/results/gpu_engine.jsonl; --capacity gives another one. The price
of a GPU is what you pay, not a measurement. The last line is JSON.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nightingale_lab.bench import runner
from nightingale_lab.bench.fleet import DAY_S, TRACES, Fleet, simulate
from nightingale_lab.bench.runner import option
from nightingale_lab.bench.store import read_lines, results_folder

LISTENERS: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
DURATIONS_S = (2.0, 4.0, 6.0, 8.0, 12.0, 30.0)
MEASURED = "Turbo: most listeners, block, together"
TARGET = 0.8


def measured_capacity() -> int:
    """Return the last measured number of listeners of one GPU."""
    folder = results_folder()
    lines = read_lines(folder, "gpu_engine") if folder else []
    found = [line["table"].get(MEASURED, {}).get("reached") for line in lines]
    if not any(found):
        raise SystemExit("no measured capacity; pass --capacity")
    return int([value for value in found if value][-1])


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    capacity = asked.capacity or measured_capacity()
    fleet = Fleet(capacity=capacity, load_s=asked.load_s, gpu_hour=asked.gpu_hour)
    hours = {"poisson": 1.0, "diurnal": DAY_S / 3600, "bursts": 2.0}
    sizes, traces = LISTENERS, dict(TRACES)
    if asked.tiny:
        sizes, hours = LISTENERS[:1], dict.fromkeys(hours, 0.1)
        del traces["diurnal"]
    rows: list[dict[str, Any]] = []
    for name, trace in traces.items():
        for listeners in sizes:
            rate = listeners / (sum(DURATIONS_S) / len(DURATIONS_S))
            arrivals = trace(rate, 3600 * hours[name], 1.0)
            first = 0.2 if name == "diurnal" else 1.0
            start = math.ceil(first * listeners / (TARGET * capacity))
            result = simulate(arrivals, 1.0, DURATIONS_S, fleet, start=start, warm_up_s=60.0)
            rows.append({"trace": name, "listeners": listeners, **asdict(result)})
    runner.print_table(
        f"One GPU supplies {capacity} listeners; a new replica serves after {asked.load_s:g} s",
        ("trace", "listeners", "GPUs, mean", "GPUs, peak", "wait p50, s", "p95", "p99", "refused, %", "cost per hour"),
        [
            (
                row["trace"], row["listeners"], round(row["gpus_mean"]), row["gpus_peak"],
                *(round(row["waits_s"][name]) for name in ("p50", "p95", "p99")),
                round(100 * row["refused"], 2), round(row["cost_per_hour"]),
            )
            for row in rows
        ],
    )  # fmt: skip
    about = {"capacity": capacity, "load_s": asked.load_s, "gpu_hour": asked.gpu_hour}
    return {**about, "rows": rows}


def main(arguments: Sequence[str] | None = None) -> None:
    runner.run(
        __doc__,
        "fleet",
        measure,
        option("--capacity", type=int, help="listeners of one GPU"),
        option("--gpu-hour", type=float, default=1.0, help="price of a GPU for an hour"),
        option("--load-s", type=float, default=90.0, help="time until a new replica serves"),
        arguments=arguments,
    )
