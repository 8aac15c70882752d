"""Runs a plan: starts each task when its dependencies are there, and ends it at its deadline.

A task that fails is retried once; the others continue. The next call of the session, perhaps with corrected code,
retries failed tasks (`retry`). Files mark what is done, so a new supervisor continues where a killed one stopped.
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
from nightingale_lab.train.session_tasks import Settings, Task
from nightingale_lab.train.vocoder_data import DONE

HEARTBEAT, FINISHED, STARTED, RETRY = "heartbeat", "finished", "started", "retry"
STATUS = "status.json"
POLL_EVERY_S = 0.5
GRACE_S = 40.0
"""A task is killed when it is late by this much."""
TRIES = 2
THREADS = "4"


class Child(Protocol):
    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


Launch = Callable[[list[str], Path, Path], Child]
"""Starts a task, given its arguments, its log file and the session's state folder."""


def start_process(arguments: list[str], log: Path, state: Path) -> Child:
    """Start a stage as a process."""
    environment = os.environ | {
        "PYTHONUNBUFFERED": "1",
        # Of the stage single-speaker, a process runs on every core.
        "OMP_NUM_THREADS": "1" if arguments[0] == "single-speaker" else THREADS,
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
class TaskStatus:
    """The status of a task."""

    state: str = "waiting"
    begun_s: float | None = None
    ended_s: float | None = None
    tries: int = 0
    must_end_s: float = 0.0


@dataclass(slots=True)
class SessionStatus:
    """All tasks at one moment, as a file that others read."""

    folder: Path
    now_s: float = 0.0
    rows: dict[str, TaskStatus] = field(default_factory=dict)

    def write(self) -> None:
        rows = {name: asdict(row) for name, row in self.rows.items()}
        partial = self.folder / (STATUS + ".partial")
        partial.write_text(json.dumps({"now_s": self.now_s, "rows": rows}), encoding="utf-8")
        partial.replace(self.folder / STATUS)

    @classmethod
    def read(cls, folder: Path) -> SessionStatus:
        path = folder / STATUS
        if not path.is_file():
            return cls(folder)
        held = json.loads(path.read_text(encoding="utf-8"))
        return cls(folder, held["now_s"], {name: TaskStatus(**row) for name, row in held["rows"].items()})

    @property
    def failed(self) -> list[TaskStatus]:
        return [row for row in self.rows.values() if row.state.startswith("failed")]

    def line(self) -> str:
        """Return the states in short, and the last log line of the task that logged last."""
        logs = [
            self.folder / "logs" / f"{name}.log" for name, row in self.rows.items() if row.state == "runs"
        ]
        written = [log for log in logs if log.is_file() and log.stat().st_size]
        latest = max(written, key=lambda log: log.stat().st_mtime, default=None)
        states = " ".join(f"{name}:{row.state}" for name, row in self.rows.items() if row.state != "waiting")
        return f"{states} | {latest.stem}: {last_line(latest)}" if latest else states

    def table(self) -> str:
        rows = [f"{'stage':<15}{'state':<9}{'from':>7}{'to':>7}  last line"]
        for name, row in self.rows.items():
            begun, ended = (f"{t:.0f}" if t is not None else "-" for t in (row.begun_s, row.ended_s))
            line = last_line(self.folder / "logs" / f"{name}.log")
            rows.append(f"{name:<15}{row.state:<9}{begun:>7}{ended:>7}  {line}")
        return "\n".join(rows)


def last_line(log: Path) -> str:
    """Return the last line of a log, shortened."""
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:230] if lines else ""


def supervise(settings: Settings, tasks: list[Task], launch: Launch) -> SessionStatus:
    """Run the tasks until all have ended or the session's time is over."""
    state = Path(settings.state)
    if not (state / STARTED).is_file():
        (state / STARTED).write_text(repr(time.time()), encoding="utf-8")
    started = float((state / STARTED).read_text(encoding="utf-8"))
    status = SessionStatus(state, rows={task.name: TaskStatus() for task in tasks})
    for task in tasks:
        if settings.done_marker(task.name).exists():
            status.rows[task.name].state = "done"
    children: dict[str, Child] = {}
    while True:
        status.now_s = time.time() - started
        if (state / RETRY).exists():
            (state / RETRY).unlink()
            for row in status.failed:
                row.state, row.tries = "waiting", 0
        for task in tasks:
            _advance(task, status, children, settings, launch)
        (state / HEARTBEAT).touch()
        status.write()
        open_rows = [row for row in status.rows.values() if row.state in ("waiting", "runs")]
        if not open_rows or status.now_s > settings.plan_s + GRACE_S:
            break
        time.sleep(POLL_EVERY_S)
    (state / FINISHED).touch()
    return status


def _advance(
    task: Task, status: SessionStatus, children: dict[str, Child], settings: Settings, launch: Launch
) -> None:
    row, now_s = status.rows[task.name], status.now_s
    if row.state == "waiting":
        if now_s >= task.ends_s:
            row.state = "too late"
            _settle(task, settings)
        elif all(path.exists() for path in task.needs):
            left_s = min(task.ends_s - now_s, task.at_most_s)
            arguments = [*task.arguments(left_s), *settings.options.get(task.name, [])]
            log = status.folder / "logs" / f"{task.name}.log"
            children[task.name] = launch(arguments, log, status.folder)
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
        settings.done_marker(task.name).touch()
    else:
        again = row.tries < TRIES and task.ends_s - now_s > settings.load_s
        row.state = "waiting" if again else f"failed {code}"
        if not again:
            _settle(task, settings)


def _settle(task: Task, settings: Settings) -> None:
    """After a task that failed, mark it as done if other tasks can continue without it or with its output."""
    if task.optional or (task.output is not None and task.output.exists()):
        settings.done_marker(task.name).touch()
    if task.name == "data" and any(settings.corpus.glob(f"part*/{READY}")):
        (settings.corpus / DONE).touch()
