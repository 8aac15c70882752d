"""The board of a GPU benchmark: it runs the parts of a benchmark and collects measurements, checks and errors.

A part that fails, or for which no time is left, is recorded as an error; the other parts run nevertheless.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nightingale_lab.bench import runner
from nightingale_lab.bench.runner import BenchmarkOption, option, report


def parser(doc: str | None, *options: BenchmarkOption, budget_s: float) -> argparse.ArgumentParser:
    """Return a parser with these options and those of every GPU benchmark."""
    made = runner.parser(doc)
    common = (
        option("--device", default="cuda"),
        option("--budget-s", type=float, default=budget_s, help="no part is begun after these seconds"),
        option("--partial", type=Path, help="a file for what is known after each part"),
    )
    runner.add_options(made, (*common, *options))
    return made


@dataclass
class ScriptBoard:
    options: argparse.Namespace
    rows: dict[str, float] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    """Details that are too long for the last line: they go to `--partial` only."""
    more: Callable[[], dict[str, Any]] = dict
    """Returns further entries of the last line."""

    def __post_init__(self) -> None:
        self.device = torch.device(self.options.device)
        self._deadline = time.perf_counter() + self.options.budget_s

    def part(self, name: str, act: Callable[[], None]) -> None:
        """Run one part of the benchmark."""
        started = time.perf_counter()
        if started > self._deadline:
            self.errors[name] = "skipped: no time left"
            return
        try:
            act()
        except Exception as error:
            self.errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            traceback.print_exc()
        report(f"[{time.perf_counter() - started:6.1f} s] {name}")
        if self.options.partial:
            known = json.dumps(self.result() | {"found": self.found})
            self.options.partial.write_text(known + "\n", encoding="utf-8")

    def result(self) -> dict[str, Any]:
        rows = {name: round(value, 4) for name, value in self.rows.items()}
        return {**self.more(), "rows": rows, "checks": self.checks, "errors": self.errors}

    def finish(self, kind: str) -> None:
        """Print everything, then the result as the last line."""
        for name, value in self.rows.items():
            report(f"{name:52}{value:10.3f}")
        for name, text in (self.checks | self.errors).items():
            report(f"{name}: {text}")
        if self.options.tiny:
            report(runner.TINY_NOTE)
        runner.finish(self.result(), kind, self.options)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def same_until(ones: Sequence[int], others: Sequence[int]) -> int:
    """Return how many tokens agree before the first that does not."""
    return next((i for i, (a, b) in enumerate(zip(ones, others, strict=False)) if a != b), len(ones))
