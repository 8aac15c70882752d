"""How the command line talks to people: on stderr, in few words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nightingale.errors import ConfigError, NightingaleError


def note(text: str) -> None:
    print(text, file=sys.stderr)


def complain(error: NightingaleError) -> None:
    """The four parts of an error, one to a line."""
    note(f"error: {error.what}")
    note(f"  got:     {error.got}")
    note(f"  allowed: {error.allowed}")
    note(f"  fix:     {error.fix}")


@contextmanager
def busy(text: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A spinner while something takes time; a plain line where nobody watches; nothing if quiet.

    Gives a way to say how far it is, which is for those who watch.
    """
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(text) as status:
            yield lambda news: status.update(f"{text} {news}")
    else:
        note(text)
        yield lambda _: None


def read_options(pairs: list[str]) -> dict[str, Any]:
    """KEY=VALUE arguments as the options of a model."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (equals and key.isidentifier() and value):
            raise ConfigError(
                "not an option",
                got=repr(pair),
                allowed="KEY=VALUE",
                fix="For example: -O t3=v3",
            )
        options[key] = value
    return options


def size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
