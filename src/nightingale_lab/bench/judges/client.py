"""Start judge workers, hand clips to them and yield their scores."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from nightingale.errors import ConfigError
from nightingale_lab.environments import python_in

HOME_VARIABLE = "NIGHTINGALE_JUDGES"
WORKER = Path(__file__).with_name("worker.py")
DEFAULT_HOME = Path(__file__).resolve().parents[4] / ".venv-judges"
"""Beside `src` in a checkout."""


def judges_python(home: Path | None = None) -> Path:
    """Return the Python of the judges' environment: in `home`, $NIGHTINGALE_JUDGES, or the default.

    Raises:
        ConfigError: it is not installed.
    """
    python = python_in(home or Path(os.environ.get(HOME_VARIABLE, DEFAULT_HOME)))
    if not python.exists():
        raise ConfigError(
            "the judges of speech are not installed",
            got=f"no {python}",
            allowed=f"an environment made by `make judges`, or its folder in ${HOME_VARIABLE}",
            fix="Run `make judges` (about 1.8 GB on disk), or measure without judges.",
        )
    return python


def run_judges(
    jobs: Sequence[Mapping[str, Any]], *, only: Sequence[str], python: Path, workers: int = 1
) -> Iterator[dict[str, Any]]:
    """Yield the scores in the order in which they arrive. `worker.py` describes jobs and scores.

    Raises:
        RuntimeError: a worker stopped before its last clip; the message has its last output.
    """
    command = [str(python), str(WORKER), "--only", ",".join(only)]
    answers: SimpleQueue[Any] = SimpleQueue()
    shares = [share for index in range(workers) if (share := jobs[index::workers])]
    for share in shares:
        Thread(target=_run_worker, args=(command, share, answers), daemon=True).start()
    running = len(shares)
    while running:
        answer = answers.get()
        if answer is None:
            running -= 1
        elif isinstance(answer, RuntimeError):
            raise answer
        else:
            yield answer


def _run_worker(command: Sequence[str], jobs: Sequence[Mapping[str, Any]], answers: SimpleQueue[Any]) -> None:
    """Run one worker from start to end. stdin and stderr have threads, since each pipe may fill."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    answered = 0
    errors: list[str] = []
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        helpers = [
            Thread(target=_write, args=(process, lines), daemon=True),
            Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True),
        ]
        for helper in helpers:
            helper.start()
        for line in process.stdout:
            answered += 1
            answers.put(json.loads(line))
        for helper in helpers:
            helper.join()
    if answered < len(jobs):
        last = "".join(errors)[-800:]
        answers.put(RuntimeError(f"a judge stopped after {answered} of {len(jobs)} clips: {last}"))
    answers.put(None)


def _write(process: subprocess.Popen[str], lines: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(lines)
        process.stdin.close()
    except BrokenPipeError:
        return  # the worker stopped; _run_worker reports it
