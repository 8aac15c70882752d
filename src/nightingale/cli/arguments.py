"""The parameters of a command, and reading of plain arguments without typer, which reads the same parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Annotated, Any, get_args, get_type_hints

from nightingale.cli.options import Argument, Option, option
from nightingale.request_options import OPTIONS, SWITCHES, RequestOption


def parameters_of(command: Callable[..., None]) -> dict[str, Parameter]:
    """Return the parameters of a command by name, with their types and descriptions.

    `**request` stands for the options of a request that the command does not describe itself, and `**settings` for
    those of the server.
    """
    hints = get_type_hints(command, include_extras=True)
    own = {
        name: one.replace(annotation=hints.get(name)) for name, one in signature(command).parameters.items()
    }
    if settings := own.pop("settings", None):
        from nightingale.cli.setting_flags import setting_flags

        return own | setting_flags(get_args(settings.annotation)[1:])
    if own.pop("request", None) is None:
        return own
    flags = dict(_flag(name, option) for name, option in OPTIONS.items() if name not in own)
    names = list(own)
    place = 1 + max(names.index(name) for name in ("voice", "language", "seed") if name in own)
    return {name: own.get(name) or flags[name] for name in (*names[:place], *flags, *names[place:])}


def _flag(name: str, about: RequestOption) -> tuple[str, Parameter]:
    """Return the parameter of a command for an option of a request, and its name."""
    kind: Any = about.kind | None
    value: bool | None = None
    names = (about.short, f"--{name}") if about.short else ()
    shown = option(about.brief, *names, default=str(about.default or "") or False)
    if name in SWITCHES:
        kind, value = bool, False
        text, name = (about.off, f"no_{name}") if about.default else (about.help, name)
        shown = option(text, f"--{name.replace('_', '-')}")
    return name, Parameter(
        name, Parameter.POSITIONAL_OR_KEYWORD, default=value, annotation=Annotated[kind, shown]
    )


def given_options(request: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a request that were given, of the values of the flags of `parameters_of`."""
    given = {name: request.get(name) for name in OPTIONS}
    off = {name: False for name in SWITCHES if request.get(f"no_{name}")}
    return {name: value for name, value in given.items() if value is not None and value is not False} | off


def parse_plain(command: Callable[..., None], arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return the keyword arguments of a command, or None where typer must read them or report a mistake.

    Plain arguments are positional ones, `--name value` and `-n value`; not `--name=value`, `--` or `--help`.
    """
    parameters = parameters_of(command)
    fields = {name: get_args(one.annotation) for name, one in parameters.items()}
    positional = [name for name, (_, about) in fields.items() if isinstance(about, Argument)]
    named = {
        spelled: (name, kind)
        for name, (kind, about) in fields.items()
        if isinstance(about, Option)
        for spelled in about.names or (f"--{name.replace('_', '-')}",)
    }
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
    required = [name for name in positional if parameters[name].default is parameters[name].empty]
    if not len(required) <= len(found) <= len(positional):
        return None
    return values | dict(zip(positional, found, strict=False))


def _looks_like_option(given: str) -> bool:
    return given.startswith("-") and given != "-"
