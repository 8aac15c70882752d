"""The CPU table of docs/performance.md: a sentence of 102 tokens by the large models, in their default profile.

    python -m nightingale_lab.bench cpu                                    # ours: six minutes on two slow cores
    python -m nightingale_lab.bench cpu --upstream-python VENV/bin/python  # and upstream (chatterbox-tts)
    python -m nightingale_lab.bench cpu --upstream DIR --models nano       # one model, and upstream (make upstream-env)
    python -m nightingale_lab.bench cpu --tiny                             # the same path in seconds
    python -m nightingale_lab.bench cpu --profile fast+stream=block        # another profile than the default one
    python -m nightingale_lab.bench cpu --runtime onnxruntime              # another runtime for T3 than the profile's

Needs the extra `cpu`. Weights are random and of full size, which takes the time that real ones take; a
sentence is 102 speech tokens (4.08 s) of 60 text ids in a voice with a ten-second prompt. *Warm* means that
the model and the voice were used before, but not with this text. The multilingual model is measured with its
own decoder, which takes ten guided steps, and with `s3gen="meanflow"`, which takes two. Each part
(cpu_parts.py) runs in a process of its own, so that its peak memory is its own. Beside upstream, both
sides run twice, in turns, and the faster run of each counts: other load disturbs one after the other. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nightingale_lab.bench import runner
from nightingale_lab.bench.programs import cpu_parts
from nightingale_lab.bench.runner import option

MODELS = {
    "multilingual": ("packing", "step", "sentence", "quality"),
    "multilingual+meanflow": ("sentence", "mel"),
    "nano": ("packing", "step", "sentence", "quality", "mel"),
}
"""The models, and the parts that are measured of each."""
SOURCES = Path(__file__).parents[3]
"""The folder of this checkout's packages, which upstream's environment does not have."""
GOALS = {
    "T3 multilingual int8 step / time to read its weights": ("≤", 1.8, 1.2),
    "multilingual, 10 guided steps, real-time factor": ("≤", None, 3.0),
    "multilingual + s3gen=meanflow, real-time factor": ("≤", 1.3, 0.9),
    "Nano, real-time factor": ("≤", 0.75, 0.45),
    "speed-up over upstream: multilingual": ("≥", 4.0, 8.0),
    "speed-up over upstream: Nano": ("≥", 3.5, 6.0),
    "peak memory, multilingual, GiB": ("≤", 2.0, 1.3),
}
"""Must, if there is one, and aim."""


def child(python: str, part: str, name: str, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run a part in a process of its own. A failure is a result too. Only one tiny part gets a process."""
    if options.tiny and (part, name) != ("packing", "multilingual"):
        return run_part(argparse.Namespace(**{**vars(options), "part": part, "model": name, "work": work}))
    settings = {"--part": part, "--model": name, "--work": work, "--threads": options.threads}
    settings |= {"--runtime": options.runtime, "--upstream": options.upstream, "--profile": options.profile}
    words = [str(word) for pair in settings.items() if pair[1] is not None for word in pair]
    command = [python, "-m", "nightingale_lab.bench", "cpu", *words, *(["--tiny"] if options.tiny else [])]
    started = time.perf_counter()
    try:  # errors are shown even where nothing failed: a network that fell back to float32 is a warning
        variables = {"OMP_NUM_THREADS": str(options.threads), "PYTHONPATH": str(SOURCES)}
        return runner.run_child(command, variables, show=True)
    except runner.ChildFailed as error:
        return {"error": str(error)}
    finally:
        runner.report(f"[{time.perf_counter() - started:6.1f} s] {part} {name}")


def run_part(options: argparse.Namespace) -> dict[str, Any]:
    name, work, tiny = options.model, options.work, options.tiny
    if options.part == "upstream":
        return cpu_parts.upstream(name, options.threads, options.upstream)
    if tiny:
        cpu_parts.TOKENS, cpu_parts.SWEEP_BYTES = 24, 2**20
    if options.part == "make":
        return cpu_parts.make(name, work, tiny=tiny)
    chosen = {"runtime": options.runtime, "profile": options.profile}
    bench = cpu_parts.Bench(name, work, options.threads, tiny=tiny, **chosen)
    result: dict[str, Any] = getattr(cpu_parts, options.part)(bench)
    return result


def faster(before: dict[str, Any] | None, again: dict[str, Any]) -> dict[str, Any]:
    """Return the run of a side that was disturbed less."""
    if before is None or "seconds" not in before:
        return again
    return min((run for run in (before, again) if "seconds" in run), key=lambda run: run["seconds"]["whole"])


def table(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the goals that were measured, from the results of the parts."""

    def value(part: str, *keys: str) -> float | None:
        inner: Any = found.get(part, {})
        for key in keys:
            inner = inner.get(key) if isinstance(inner, dict) else None
        return inner if isinstance(inner, float) else None

    def speed_up(name: str) -> float | None:
        theirs, ours = (value(f"{part} {name}", "seconds", "whole") for part in ("upstream", "sentence"))
        return theirs / ours if theirs and ours else None

    values = (
        value("step multilingual", "ratio"),
        value("sentence multilingual", "rtf"),
        value("sentence multilingual+meanflow", "rtf"),
        value("sentence nano", "rtf"),
        speed_up("multilingual"),
        speed_up("nano"),
        value("sentence multilingual", "peak_gib"),
    )
    return {name: value for name, value in zip(GOALS, values, strict=True) if value is not None}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all parts, and upstream beside them."""
    theirs = options.upstream_python or (sys.executable if options.upstream else None)
    with tempfile.TemporaryDirectory(prefix="nightingale-cpu-") as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        found: dict[str, dict[str, Any]] = {}
        for name in options.models:
            parts = MODELS[name]
            if not (work / f"{name}.s3gen.safetensors").is_file():
                child(sys.executable, "make", name, work, options)
            for part in parts:
                found[f"{part} {name}"] = child(sys.executable, part, name, work, options)
            if theirs and not options.tiny and "packing" in parts:
                sides = (f"upstream {name}", theirs), (f"sentence {name}", sys.executable)
                for side, python in (sides[0], sides[1], sides[0]):
                    again = child(python, side.partition(" ")[0], name, work, options)
                    found[side] = faster(found.get(side), again)
    reached = table(found)
    rows = [
        (
            name,
            "" if must is None else f"{sign} {must:g}",
            f"{sign} {aim:g}",
            reached.get(name, "not measured"),
        )
        for name, (sign, must, aim) in GOALS.items()
    ]
    title = f"{options.threads} threads, profile {options.profile}, warm, 102 tokens"
    runner.print_table(title, ("", "must", "aim", "reached"), rows)
    return {"table": reached, "parts": found, "threads": options.threads, "profile": options.profile}


OPTIONS = (
    option("--threads", type=int, default=2),
    option("--upstream-python", help="Python of a venv with chatterbox-tts"),
    option("--upstream", type=Path, help="or a folder of its packages (see nightingale_lab/upstream)"),
    option("--work", type=Path, help="a folder for weights, kept for the next run; 3.5 GB"),
    option("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS)),
    option("--profile", default="default", help="a profile, with options"),
    option("--runtime", choices=("auto", "onnxruntime", "native"), default="auto"),
    option("--part", help=argparse.SUPPRESS),
    option("--model", help=argparse.SUPPRESS),
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = runner.parser(__doc__)
    runner.add_options(parser, OPTIONS)
    options = parser.parse_args(arguments)
    if options.part:
        runner.report(json.dumps(run_part(options)))
    else:
        runner.finish(measure(options), "cpu", options)
