"""The settings and the tasks of a session, which its plans are made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

LAST_S = 12.0
"""Reserved at the end for the last checkpoints."""
SPLIT = "split"
"""Folder of the networks of a packed wren's s3gen file."""
TEACHER = "teacher"
"""This file exists when all files of Kokoro are there: they may arrive after the session has begun."""
PEOPLE = "people"
"""This file exists when the recordings of people, their phonemes and the voice encoder's teacher are there."""
FLOW_OPTIONS = ("--parts", "4", "--peak-lr", "4e-4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a session, stored in its state folder for later calls."""

    assets: str
    state: str
    plan_s: float
    start_from: str | None = None
    """Folder of an earlier session's results."""
    hours: float = 36.0
    tokenizer_s: float | None = None
    """Seconds of tokenizer training. None: 160, or 0 where an earlier session's tokenizer is kept."""
    device: str = "cuda"
    load_s: float = 15.0
    """Seconds that a stage needs to start."""
    continue_t3: bool = False
    """Train only T3 and the flow further, from an earlier session."""
    continue_rendering: bool = False
    """Train only the flow, the vocoder and the voice encoder further, with recordings of people."""
    processes: int = 0
    """Processes of the stage single-speaker, in a session that continues T3."""
    options: dict[str, list[str]] = field(default_factory=dict)
    """Further arguments of each stage."""
    stages: list[str] = field(default_factory=list)
    """Stages that run; none: all of the plan."""

    @property
    def corpus(self) -> Path:
        return Path(self.state) / "corpus"

    @property
    def out(self) -> Path:
        return Path(self.state) / "out"

    def earlier(self, name: str) -> Path | None:
        """Return a file of the earlier session, from anywhere under its folder or split from its s3gen file."""
        folders = [Path(self.start_from), Path(self.state) / SPLIT] if self.start_from else []
        return next((path for folder in folders for path in sorted(folder.rglob(name))), None)

    def done_marker(self, task: str) -> Path:
        """Return the file that exists when the task is done."""
        return Path(self.state) / "marks" / task


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    name: str
    needs: tuple[Path, ...]
    ends_s: float
    """Deadline in seconds since the session's start."""
    arguments: Callable[[float], list[str]]
    """Maps the seconds that are left to command-line arguments."""
    at_most_s: float = float("inf")
    output: Path | None = None
    """If this file exists, the task counts as done even if it was killed or failed."""
    optional: bool = False
    """The task counts as done even without a result."""


def once(settings: Settings, name: str, values: list[float]) -> list[float]:
    """Store the values of the first call and return them in later ones: a restarted stage keeps its plan."""
    path = Path(settings.state) / f"{name}.plan.json"
    if not path.is_file():
        path.write_text(json.dumps(values), encoding="utf-8")
    kept: list[float] = json.loads(path.read_text(encoding="utf-8"))
    return kept


def elapsed_s(vocoder: Path) -> float:
    from safetensors import safe_open

    with safe_open(vocoder, framework="pt") as file:
        return float((file.metadata() or {}).get("elapsed_s", 0.0))
