"""Fuzz every reader of untrusted input, guided by the lines of code that an input reaches.

    python -m nightingale_lab.reliability.fuzzing --seconds 600
    python -m nightingale_lab.reliability.fuzzing --only EPUBs --seconds 60 --seed 3

Inputs are valid ones with random changes (mutation.py); those that reach new lines are changed further. A
finding is an error that is not one of Nightingale's, an answer with a status of 500 or more, an input that
takes more than 5 s of processor time or 500 MB of memory, or one that does not end in 30 s. The inputs of
findings are written to a folder. (atheris, the usual fuzzer for Python, has no wheel for ARM and needs clang
to build.)

The exit status is 1 if something was found. The last line is JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

from nightingale_lab.bench import runner
from nightingale_lab.bench.runner import option
from nightingale_lab.reliability.fuzz_targets import FuzzTarget, targets
from nightingale_lab.reliability.mutation import FuzzCorpus, LineTracer

SLOW_S, HANG_S = 5.0, 30.0
MEMORY_MB = 500.0


class Hang(BaseException):
    """An input took so long that it was stopped. Not an Exception, so that no reader catches it."""


def stop_hang(_signal: int, _frame: FrameType | None) -> None:
    raise Hang


def peak_mb() -> float:
    """Return the largest memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 2**20)


def fuzz(target: FuzzTarget, tracer: LineTracer, seconds: float, seed: int, folder: Path) -> dict[str, Any]:
    """Fuzz one target for some time."""
    rng = random.Random(f"{seed} {target.name}")
    tracer.lines.clear()
    corpus, findings = FuzzCorpus(list(target.seeds), tracer), dict[str, str]()
    runs, slowest_s = 0, 0.0
    until = time.monotonic() + seconds
    queue = list(target.seeds)
    while queue or time.monotonic() < until:
        data = queue.pop() if queue else rng.choice(corpus.inputs)
        if runs >= len(target.seeds):
            data = target.mutator(rng, data, corpus.inputs)
        took_s, problem = run_one(target, corpus, data)
        runs, slowest_s = runs + 1, max(slowest_s, took_s)
        if problem is not None and problem not in findings:
            name = hashlib.sha256(data).hexdigest()[:12]
            (folder / f"{target.name.replace(' ', '-').replace(':', '')}-{name}").write_bytes(data)
            findings[problem] = name
            sys.stdout.write(f"{target.name}: {problem} ({name}, {len(data)} bytes)\n")
            sys.stdout.flush()
    return {
        "seconds": seconds,
        "inputs": runs,
        "lines": len(tracer.lines),
        "corpus": len(corpus.inputs),
        "slowest_s": round(slowest_s, 2),
        "findings": sorted(findings),
    }


def run_one(target: FuzzTarget, corpus: FuzzCorpus, data: bytes) -> tuple[float, str | None]:
    """Return the time that an input took, and what was wrong with it."""
    # Processor time: on a busy machine any input may wait for seconds.
    before_mb, begun, problem = peak_mb(), time.process_time(), None
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        corpus.run(target.read, data)
    except Hang:
        problem = f"stopped after {HANG_S:.0f} s"
    except Exception as error:
        problem = where(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    took_s = time.process_time() - begun
    if problem is None and took_s > SLOW_S:
        problem = "took more than 5 s"
    if problem is None and peak_mb() - before_mb > MEMORY_MB:
        problem = "took more than 500 MB"
    return took_s, problem


def where(error: Exception) -> str:
    """Return the kind of an error and the last line of ours that it passed, to tell findings apart."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/nightingale/" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside"
    return f"{type(error).__name__} at {place}: {str(error)[:120]}"


def fuzz_targets(share: slice, asked: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """Fuzz the chosen targets one after the other, or a share of them; return a row for each."""
    signal.signal(signal.SIGALRM, stop_hang)
    logging.disable(logging.CRITICAL)
    wanted = (asked.only or "").lower()
    with tempfile.TemporaryDirectory(prefix="nightingale-fuzz-home-") as home:
        os.environ["NIGHTINGALE_HOME"] = home
        tracer = LineTracer()
        with targets(tracer) as found:
            chosen = [target for target in found if wanted in target.name.lower()][share]
            return {target.name: fuzz(target, tracer, asked.seconds, asked.seed, folder) for target in chosen}


def fuzz_all(asked: argparse.Namespace) -> dict[str, Any]:
    folder = asked.found or Path(tempfile.mkdtemp(prefix="nightingale-findings-"))
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    shares = [slice(first, None, asked.processes) for first in range(asked.processes)]
    with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
        for found in pool.map(fuzz_targets, shares, repeat(asked), repeat(folder)):
            rows |= found
    body = [(name, *row.values()) for name, row in rows.items()]
    head = ("target", "seconds", "inputs", "lines reached", "corpus", "slowest, s", "findings")
    runner.print_table("Fuzzing", head, body)
    return {"seed": asked.seed, "rows": rows}


def main() -> None:
    runner.run(
        __doc__,
        "fuzz",
        fuzz_all,
        option("--seconds", type=float, default=600.0, help="for each target"),
        option("--processes", type=int, default=1, help="targets that are fuzzed at the same time"),
        option("--seed", type=int, default=0),
        option("--only", help="a part of a target's name"),
        option("--found", type=Path, help="folder for the inputs of findings"),
        tiny={"seconds": 0.5},
        failed=lambda result: any(row["findings"] for row in result["rows"].values()),
    )


if __name__ == "__main__":
    main()
