"""Output of the commands on stderr, and the parsing of KEY=VALUE arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nightingale.errors import ConfigError, NightingaleError


def note(text: str) -> None:
    print(text, file=sys.stderr)


def print_error(error: NightingaleError) -> None:
    """Print the parts of an error, one per line."""
    note(f"error: {error.what}")
    for label, part in (("got:", error.got), ("allowed:", error.allowed), ("fix:", error.fix)):
        if part is not None:
            note(f"  {label:<8} {part}")


@contextmanager
def spinner(text: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a spinner on a terminal, a line elsewhere, nothing if quiet; yield a function for progress."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(text) as status:
            yield lambda progress: status.update(f"{text} {progress}")
    else:
        note(text)
        yield lambda _: None


def loading(model: str | None) -> str:
    """Return the spinner's text while a model is loaded."""
    return f"loading {model or 'the built-in model'} …"


def parse_options(pairs: list[str] | None) -> dict[str, Any]:
    """Parse KEY=VALUE arguments into the options of a model."""
    options: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not (equals and key.isidentifier() and value):
            raise ConfigError(
                "invalid option", got=repr(pair), allowed="KEY=VALUE", fix="For example: -O t3=v3"
            )
        options[key] = value
    return options


def format_size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
