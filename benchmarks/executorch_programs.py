"""Time and memory of an ExecuTorch export, method by method, in one thread.

    nightingale export wren --format executorch -o DIR
    python benchmarks/executorch_programs.py DIR [--rounds N]

Processor time, the fastest round. Memory is what the process gains when a method is loaded and has run once:
anonymous pages, and pages of the file, which the system may drop. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import checkout  # noqa: F401
import torch
from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
from executorch.runtime import Runtime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    runtime = Runtime.get()
    _unsafe_reset_threadpool(1)
    card = json.loads((args.folder / "export.json").read_text())
    rows = []
    for file, methods in card["programs"].items():
        program = runtime.load_program(args.folder / f"{file}.pte")
        for name, described in methods.items():
            inputs = [
                torch.full(one["shape"], one.get("start", 0), dtype=getattr(torch, one["dtype"]))
                for one in described["inputs"]
            ]
            before, started = memory(), time.process_time()
            method = program.load_method(name)
            load_ms = 1000 * (time.process_time() - started)
            run_ms = fastest(lambda method=method, inputs=inputs: method.execute(inputs), args.rounds)
            after = memory()
            rows.append(
                {
                    "method": f"{file}.{name}",
                    "load_ms": round(load_ms, 1),
                    "run_ms": round(run_ms, 2),
                    "planned_kib": card["planned_bytes"][file][name] // 1024,
                    "anonymous_mib": round((after[0] - before[0]) / 1024, 1),
                    "file_mib": round((after[1] - before[1]) / 1024, 1),
                }
            )
            print(rows[-1])
    print(json.dumps({"machine": platform.machine(), "versions": card["versions"], "methods": rows}))


def fastest(run: Callable[[], object], rounds: int) -> float:
    """Return the fewest milliseconds of processor time of a call."""
    times = []
    for _ in range(rounds + 1):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return 1000 * min(times[1:])


def memory() -> tuple[int, int]:
    """Return this process's anonymous and file-backed pages, in KiB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]), int(status["RssFile"].split()[0])


if __name__ == "__main__":
    main()
