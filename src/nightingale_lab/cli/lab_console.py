"""Options, progress bars and the console of the lab's commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightingale.cli.console import note

if TYPE_CHECKING:
    from rich.console import Console

Results = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the results, bench.jsonl and verify.jsonl.",
        show_default="benchmarks/results in a checkout",
    ),
]
FILE_WIDTH = 120
"""Width of tables that do not go to a terminal; wrapped at 80 columns they would be hard to read."""


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[str, int, int], object]]:
    """Yield a function of (task, done, total). It shows a bar on a terminal, a line per task elsewhere."""
    if quiet:
        yield lambda *_: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bars:
            bar = bars.add_task("…", total=None)
            yield lambda task, done, total: bars.update(bar, description=task, completed=done, total=total)
    else:
        shown: set[str] = set()

        def show(task: str, *_: int) -> None:
            if task not in shown:
                shown.add(task)
                note(f"{task} …")

        yield show


@contextmanager
def counter(task: str, total: int, *, quiet: bool) -> Iterator[Callable[[], object]]:
    """Yield a function to be called once for each of `total` steps of a task."""
    with progress(quiet=quiet) as show:
        show(task, 0, total)
        done = count(1)
        yield lambda: show(task, next(done), total)


def console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
