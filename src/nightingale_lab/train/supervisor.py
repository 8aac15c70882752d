"""Runs a plan: starts each task when what it needs is there, and ends it when its time is over.

A task that fails is tried once more and then left; the others go on. Whoever calls again, perhaps with mended
code, has failed tasks tried again (`retry`). What is done is marked by files, so a supervisor that was killed
finds its place again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from nightingale_lab.train.corpus import READY
from nightingale_lab.train.plan import Settings, Task
from nightingale_lab.train.vocoder_feed import DONE

BEAT, FINISHED, STARTED, RETRY = "beat", "finished", "started", "retry"
BOARD = "board.json"
LOOK_EVERY_S = 0.5
GRACE_S = 40.0
"""A task may be so late before it is killed."""
TRIES = 2
THREADS = "4"


class Child(Protocol):
    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


Launch = Callable[[list[str], Path, Path], Child]
"""Arguments, log file and the session's state folder -> what runs."""


def process(arguments: list[str], log: Path, state: Path) -> Child:
    """A stage as a process of its own."""
    environment = os.environ | {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": THREADS,
        "TORCHINDUCTOR_CACHE_DIR": str(state / "inductor"),
    }
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "nightingale_lab.train", *arguments],
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            env=environment,
        )


@dataclass(slots=True)
class Row:
    """What is known of a task."""

    state: str = "waiting"
    begun_s: float | None = None
    ended_s: float | None = None
    tries: int = 0
    must_end_s: float = 0.0


@dataclass(slots=True)
class Board:
    """All tasks at one moment, as a file that others read."""

    folder: Path
    now_s: float = 0.0
    rows: dict[str, Row] = field(default_factory=dict)

    def write(self) -> None:
        rows = {name: asdict(row) for name, row in self.rows.items()}
        partial = self.folder / (BOARD + ".partial")
        partial.write_text(json.dumps({"now_s": self.now_s, "rows": rows}), encoding="utf-8")
        partial.replace(self.folder / BOARD)

    @classmethod
    def read(cls, folder: Path) -> Board:
        path = folder / BOARD
        if not path.is_file():
            return cls(folder)
        held = json.loads(path.read_text(encoding="utf-8"))
        return cls(folder, held["now_s"], {name: Row(**row) for name, row in held["rows"].items()})

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows.values() if row.state.startswith("failed")]

    def line(self) -> str:
        """States in short, and the last word of the task that spoke last."""
        logs = [
            self.folder / "logs" / f"{name}.log" for name, row in self.rows.items() if row.state == "runs"
        ]
        spoken = [log for log in logs if log.is_file() and log.stat().st_size]
        latest = max(spoken, key=lambda log: log.stat().st_mtime, default=None)
        states = " ".join(f"{name}:{row.state}" for name, row in self.rows.items() if row.state != "waiting")
        return f"{states} | {latest.stem}: {last_line(latest)}" if latest else states

    def table(self) -> str:
        rows = [f"{'stage':<15}{'state':<9}{'from':>7}{'to':>7}  last word"]
        for name, row in self.rows.items():
            begun, ended = (f"{t:.0f}" if t is not None else "-" for t in (row.begun_s, row.ended_s))
            word = last_line(self.folder / "logs" / f"{name}.log")
            rows.append(f"{name:<15}{row.state:<9}{begun:>7}{ended:>7}  {word}")
        return "\n".join(rows)


def last_line(log: Path) -> str:
    """The end of a log, short."""
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:230] if lines else ""


def supervise(settings: Settings, tasks: list[Task], launch: Launch) -> Board:
    """Until every task has ended or the session's time is over."""
    state = Path(settings.state)
    if not (state / STARTED).is_file():
        (state / STARTED).write_text(repr(time.time()), encoding="utf-8")
    started = float((state / STARTED).read_text(encoding="utf-8"))
    board = Board(state, rows={task.name: Row() for task in tasks})
    for task in tasks:
        if settings.mark(task.name).exists():
            board.rows[task.name].state = "done"
    children: dict[str, Child] = {}
    while True:
        board.now_s = time.time() - started
        if (state / RETRY).exists():
            (state / RETRY).unlink()
            for row in board.failed:
                row.state, row.tries = "waiting", 0
        for task in tasks:
            _advance(task, board, children, settings, launch)
        (state / BEAT).touch()
        board.write()
        open_rows = [row for row in board.rows.values() if row.state in ("waiting", "runs")]
        if not open_rows or board.now_s > settings.plan_s + GRACE_S:
            break
        time.sleep(LOOK_EVERY_S)
    (state / FINISHED).touch()
    return board


def _advance(
    task: Task, board: Board, children: dict[str, Child], settings: Settings, launch: Launch
) -> None:
    row, now_s = board.rows[task.name], board.now_s
    if row.state == "waiting":
        if now_s >= task.ends_s:
            row.state = "too late"
            _settle(task, settings)
        elif all(path.exists() for path in task.needs):
            left_s = min(task.ends_s - now_s, task.at_most_s)
            arguments = [*task.arguments(left_s), *settings.options.get(task.name, [])]
            log = board.folder / "logs" / f"{task.name}.log"
            children[task.name] = launch(arguments, log, board.folder)
            row.state, row.tries = "runs", row.tries + 1
            row.must_end_s = now_s + left_s + GRACE_S
            row.begun_s = now_s if row.begun_s is None else row.begun_s
        return
    if row.state != "runs":
        return
    child = children[task.name]
    code = child.poll()
    if code is None:
        if now_s > row.must_end_s:
            child.kill()
            row.state, row.ended_s = "killed", now_s
            _settle(task, settings)
        return
    row.ended_s = now_s
    if code == 0:
        row.state = "done"
        settings.mark(task.name).touch()
    else:
        again = row.tries < TRIES and task.ends_s - now_s > settings.load_s
        row.state = "waiting" if again else f"failed {code}"
        if not again:
            _settle(task, settings)


def _settle(task: Task, settings: Settings) -> None:
    """After a task that did not end well: what it left must do."""
    if task.optional or (task.product is not None and task.product.exists()):
        settings.mark(task.name).touch()
    if task.name == "data" and any(settings.corpus.glob(f"part*/{READY}")):
        (settings.corpus / DONE).touch()
