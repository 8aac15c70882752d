"""What the GPU scripts share: their command line, the board that measurements are noted on, small sums.

Not a script. Import it before the package: it makes the package importable from a bare checkout, where torch,
numpy and safetensors are installed and nothing else. Packages that are only imported are stood in for.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ONLY_IMPORTED = ("soxr", "soundfile", "tokenizers", "platformdirs", "num2words", "huggingface_hub")


class Absent(types.ModuleType):
    """Stands for a package that is imported and never used here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
for package in ONLY_IMPORTED:
    if importlib.util.find_spec(package) is None:
        sys.modules[package] = Absent(package)


def parser(about: str | None, *, budget_s: float) -> argparse.ArgumentParser:
    """What every one of the scripts can be told."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cuda")
    made.add_argument("--tiny", action="store_true", help="toy sizes: proves the path, measures nothing")
    made.add_argument(
        "--budget-s", type=float, default=budget_s, help="no part is begun after so many seconds"
    )
    made.add_argument("--partial", type=Path, help="where to write what is known after each part")
    made.add_argument("--out", type=Path, help="append the JSON line to this file too")
    return made


@dataclass
class Board:
    """What was measured, and what went wrong."""

    options: argparse.Namespace
    rows: dict[str, float] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    """Too long for a line: it is written to --partial only."""
    more: Callable[[], dict[str, Any]] = dict
    """What else a script has to tell in its line."""

    def __post_init__(self) -> None:
        self.device = torch.device(self.options.device)
        self._deadline = time.perf_counter() + self.options.budget_s

    def part(self, name: str, act: Callable[[], None]) -> None:
        """One that fails, or for which no time is left, is named; the others go on."""
        started = time.perf_counter()
        if started > self._deadline:
            self.errors[name] = "skipped: no time left"
            return
        try:
            act()
        except Exception as error:
            self.errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            traceback.print_exc()
        print(f"[{time.perf_counter() - started:6.1f} s] {name}", flush=True)
        if self.options.partial:
            told = json.dumps(self.result() | {"found": self.found})
            self.options.partial.write_text(told + "\n", encoding="utf-8")

    def result(self) -> dict[str, Any]:
        return (
            machine(self.device)
            | {"tiny": self.options.tiny}
            | self.more()
            | {
                "rows": {name: round(value, 4) for name, value in self.rows.items()},
                "checks": self.checks,
                "errors": self.errors,
            }
        )

    def finish(self, table: str = "") -> None:
        """All of it for people, then one line for machines."""
        print(*(f"{name:52}{value:10.3f}" for name, value in self.rows.items()), sep="\n")
        print(*(f"{name}: {value}" for name, value in (self.checks | self.errors).items()), sep="\n")
        print(table)
        if self.options.tiny:
            print("toy sizes: these numbers prove the path and measure nothing")
        line = json.dumps(self.result(), separators=(",", ":"))
        if self.options.out:
            with self.options.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        print(line)


def machine(device: torch.device) -> dict[str, str]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "device": name or platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or "unknown",
    }


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def error_of(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def prefix(ones: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens are the same before the first that is not."""
    return next((i for i, (a, b) in enumerate(zip(ones, others, strict=False)) if a != b), len(ones))
