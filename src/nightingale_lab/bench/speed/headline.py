"""The numbers that users notice, in one table: cold start, real-time factor, first audio, memory, listeners."""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from nightingale.errors import EngineFault

COLD_TEXT: Final = "Good morning."
REPEATS: Final = 3
LEVELS: Final = (1, 2, 4)
"""Listeners at once."""
UNDERRUN: Final = (
    "underrun: a player starts at its first chunk and plays in real time; each time it has played everything",
    "before the next chunk arrives, although the utterance has not ended, counts one.",
)


def process_s(command: Sequence[str], repeats: int = REPEATS) -> float:
    """Return the median time of a process, from start to exit.

    Raises:
        EngineFault: it failed.
    """
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        times.append(time.perf_counter() - begun)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise EngineFault("a fresh process failed", got=last, fix=f"Run it yourself: {' '.join(command)}")
    return statistics.median(times)


def cold_say(model: str | None, profile: str | None) -> dict[str, float]:
    """Return the seconds of `nightingale say` in a fresh process, and over `import torch` if torch is installed."""
    with tempfile.TemporaryDirectory(prefix="nightingale-bench-") as folder:
        command = [sys.executable, "-m", "nightingale", "say", COLD_TEXT, "-o", str(Path(folder) / "say.wav")]
        command += ["--model", model] if model else []
        command += ["--profile", profile] if profile else []
        found = {"say_s": round(process_s(command), 3)}
    if importlib.util.find_spec("torch") is not None:
        found["import_torch_s"] = round(process_s([sys.executable, "-c", "import torch"]), 3)
        found["over_import_torch"] = round(found["say_s"] / found["import_torch_s"], 3)
    return found


def headline_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the table, in the order and with the words of its readers."""
    by_level = {row["listeners"]: row for row in result["listeners"]}
    cold, fresh = result.get("say", {}), result.get("fresh", {})
    rows: list[tuple[str, Any, str]] = [
        (f'nightingale say "{COLD_TEXT}", process start to file', cold.get("say_s"), "s"),
        ('the same, over python -c "import torch"', cold.get("over_import_torch"), ""),
        ("peak memory while speaking", fresh.get("peak_memory_mb"), "MB"),
    ]
    if 1 in by_level:
        rows.append(("real-time factor, one listener", by_level[1]["rtf_p50"], ""))
        rows.append(("first audio, warm, one listener, p50", by_level[1]["ttfa_ms_p50"], "ms"))
    for level, row in by_level.items():
        each = row["sentences"] // level
        rows.append((f"underruns, listeners at once: {level}, {each} sentences each", row["underruns"], ""))
    for level, row in by_level.items():
        if level > 1:
            rows.append(
                (f"first audio of listener {level} of {level}, p50", row["ttfa_ms_by_arrival"][-1], "ms")
            )
            rows.append((f"first audio of all {level} listeners, p50", row["ttfa_ms_p50"], "ms"))
    return [{"what": what, "value": value, "unit": unit} for what, value, unit in rows]
