"""How long runs are watched, and tables shown: shared by the verbs that measure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from nightingale.cli.talk import note

if TYPE_CHECKING:
    from rich.console import Console

UNWATCHED_WIDTH = 120
"""Where nobody watches there is no edge to keep to, and a table wrapped at 80 cannot be read."""


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[str, int, int], object]]:
    """PromptText what is done, how far, of how much: a bar where somebody watches; else a line each; or nothing."""
    if quiet:
        yield lambda *_: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bars:
            bar = bars.add_task("…", total=None)
            yield lambda what, done, of: bars.update(bar, description=what, completed=done, total=of)
    else:
        told: set[str] = set()

        def tell(what: str, *_: int) -> None:
            if what not in told:
                told.add(what)
                note(f"{what} …")

        yield tell


@contextmanager
def counting(what: str, total: int, *, quiet: bool) -> Iterator[Callable[[], object]]:
    """Progress of so many things alike: called once for each."""
    with progress(quiet=quiet) as tell:
        tell(what, 0, total)
        done = count(1)
        yield lambda: tell(what, next(done), total)


def console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else UNWATCHED_WIDTH)
