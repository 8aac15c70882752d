"""Output of the commands on stderr, and the parsing of KEY=VALUE arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nightingale.errors import ConfigError, NightingaleError
from nightingale.install import install_command, other_package

INTERRUPTED = 130
"""128 + SIGINT, as shells expect."""


def note(text: str) -> None:
    print(text, file=sys.stderr)


def print_error(error: NightingaleError) -> None:
    """Print the parts of an error, one per line."""
    note(f"error: {error.what}")
    for label, part in (("got:", error.got), ("allowed:", error.allowed), ("fix:", error.fix)):
        if part is not None:
            note(f"  {label:<8} {part}")


def check_import_name() -> None:
    """Raise ConfigError if another package with our import name is installed, since its files replace ours."""
    name = other_package()
    if name is not None:
        again = install_command().replace("pip install", "pip install --force-reinstall --no-deps", 1)
        raise ConfigError(
            "another package has the import name of nightingale-tts and overwrites its files",
            got=f"the installed package {name}",
            fix=f"Run pip uninstall {name}, then {again}",
        )


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn errors and an interrupt into messages and exit codes."""
    try:
        yield
    except NightingaleError as error:
        print_error(error)
        raise SystemExit(error.exit_code) from error
    except KeyboardInterrupt as interrupt:
        note("interrupted")
        raise SystemExit(INTERRUPTED) from interrupt


@contextmanager
def progress_line(text: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show what is done: on a terminal until it is done, with progress; elsewhere as a line; nothing if quiet."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        width = 0

        def show(line: str) -> None:
            # Spaces erase what was longer before; old consoles of Windows print escape sequences as they are.
            nonlocal width
            print("\r" + line.ljust(width), end="" if line else "\r", file=sys.stderr, flush=True)
            width = len(line)

        show(text)
        try:
            yield lambda progress: show(f"{text} {progress}")
        finally:
            show("")
    else:
        note(text)
        yield lambda _: None


def progress_bar(fraction: float, width: int = 24) -> str:
    """Return a bar and a percentage."""
    full = int(fraction * width)
    return f"[{'#' * full}{'.' * (width - full)}] {fraction:4.0%}"


def loading(model: str | None) -> str:
    """Return the text of the progress line while a model is loaded."""
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


def format_clock(seconds: float) -> str:
    """Return hours, minutes and seconds; without hours if there are none."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
