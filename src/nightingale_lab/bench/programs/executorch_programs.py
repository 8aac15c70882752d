"""Time and memory of an ExecuTorch export, method by method, in one thread.

    nightingale export wren --format executorch -o DIR
    python -m nightingale_lab.bench executorch_programs DIR [--rounds N]

Processor time, the fastest round. Memory is what the process gains when a method is loaded and has run once:
anonymous pages, and pages of the file, which the system may drop. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
from executorch.runtime import Runtime

from nightingale_lab.bench import runner
from nightingale_lab.bench.runner import option
from nightingale_lab.bench.timing import cpu_ms


def measure(args: argparse.Namespace) -> dict[str, Any]:
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
            method.execute(inputs)
            run_ms = cpu_ms(partial(method.execute, inputs), args.rounds)
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
    runner.print_records("Methods", *rows)
    return {"exported": card["versions"], "methods": rows}


def memory() -> tuple[int, int]:
    """Return this process's anonymous and file-backed pages, in KiB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]), int(status["RssFile"].split()[0])


def main(arguments: Sequence[str] | None = None) -> None:
    runner.run(
        __doc__,
        "executorch_programs",
        measure,
        option("folder", type=Path),
        option("--rounds", type=int, default=20),
        tiny={"rounds": 1},
        arguments=arguments,
    )
