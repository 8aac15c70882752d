"""Talks to the judges: hands clips to one or more worker processes and yields their scores."""

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

HOME_VARIABLE = "NIGHTINGALE_JUDGES"
WORKER = Path(__file__).with_name("worker.py")


def judges_python(home: Path | None = None) -> Path:
    """The environment's Python: from `home`, else $NIGHTINGALE_JUDGES, else `.venv-judges` beside `src`."""
    fallback = Path(__file__).resolve().parents[4] / ".venv-judges"
    folder = home or Path(os.environ.get(HOME_VARIABLE, fallback))
    python = folder / "bin" / "python"
    if not python.exists():
        raise ConfigError(
            "the judges of speech are not installed",
            got=f"no {python}",
            allowed=f"an environment made by `make judges`, or its folder in ${HOME_VARIABLE}",
            fix="Run `make judges` (about 800 MB on disk), or measure without judges.",
        )
    return python


def _serve(command: Sequence[str], jobs: Sequence[Mapping[str, Any]], answers: SimpleQueue[Any]) -> None:
    """One worker from start to end. Three threads, because each of the three pipes may fill."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    answered = 0
    complaints: list[str] = []
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        helpers = [
            Thread(target=_feed, args=(process, lines), daemon=True),
            Thread(target=lambda: complaints.extend(process.stderr or ()), daemon=True),
        ]
        for helper in helpers:
            helper.start()
        for line in process.stdout:
            answered += 1
            answers.put(json.loads(line))
        for helper in helpers:
            helper.join()
    if answered < len(jobs):
        last_words = "".join(complaints)[-800:]
        answers.put(RuntimeError(f"a judge stopped after {answered} of {len(jobs)} clips: {last_words}"))
    answers.put(None)


def _feed(process: subprocess.Popen[str], lines: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(lines)
        process.stdin.close()
    except BrokenPipeError:
        return  # the worker died; _serve reports it


def run_judges(
    jobs: Sequence[Mapping[str, Any]], *, only: Sequence[str], python: Path, workers: int = 1
) -> Iterator[dict[str, Any]]:
    """Logits in the order they arrive, each with its `wav`. The keys are those of `worker.py`."""
    command = [str(python), str(WORKER), "--only", ",".join(only)]
    answers: SimpleQueue[Any] = SimpleQueue()
    shares = [share for index in range(workers) if (share := jobs[index::workers])]
    for share in shares:
        Thread(target=_serve, args=(command, share, answers), daemon=True).start()
    running = len(shares)
    while running:
        answer = answers.get()
        if answer is None:
            running -= 1
        elif isinstance(answer, RuntimeError):
            raise answer
        else:
            yield answer
