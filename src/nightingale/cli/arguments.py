"""Reading of a command's plain arguments without typer, from the signature that typer reads too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, get_args, get_type_hints

from nightingale.cli.options import Argument, Option


def parse_plain(command: Callable[..., None], arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return the keyword arguments of a command, or None where typer must read them or report a mistake.

    Plain arguments are positional ones, `--name value` and `-n value`; not `--name=value`, `--` or `--help`.
    """
    hints = get_type_hints(command, include_extras=True)
    fields = {name: get_args(hint) for name, hint in hints.items() if name != "return"}
    positional = [name for name, (_, about) in fields.items() if isinstance(about, Argument)]
    named = {
        spelled: (name, kind)
        for name, (kind, about) in fields.items()
        if isinstance(about, Option)
        for spelled in about.names or (f"--{name.replace('_', '-')}",)
    }
    defaults = signature(command).parameters
    values: dict[str, Any] = {}
    found: list[str] = []
    left = iter(arguments)
    try:
        for given in left:
            if not _looks_like_option(given):
                found.append(given)
                continue
            name, kind = named[given]
            if kind is bool:
                values[name] = True
                continue
            value = next(left)
            if _looks_like_option(value):
                return None
            wanted = next((one for one in (int, float) if one in get_args(kind)), str)
            is_list = kind == list[str] | None
            values[name] = [*values.get(name, []), value] if is_list else wanted(value)
    except (KeyError, StopIteration, ValueError):
        return None
    required = [name for name in positional if defaults[name].default is defaults[name].empty]
    if not len(required) <= len(found) <= len(positional):
        return None
    return values | dict(zip(positional, found, strict=False))


def _looks_like_option(given: str) -> bool:
    return given.startswith("-") and given != "-"
