"""The flags of commands that serve, made from the settings of the server."""

from __future__ import annotations

from collections.abc import Collection
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from nightingale.cli import options
from nightingale.cli.options import option
from nightingale.server.settings import ServerSettings

NOT_FLAGS: Final = {"api_key"}
"""Other users of the machine can read a command line."""
SHARED: Final[dict[str, Any]] = {
    "model": options.Model,
    "option": options.Choices,
    "profile": options.Profile,
    "stream": options.Stream,
    "lexicon": options.LexiconFile,
}
"""Flags that other commands have as well."""


def setting_flags(names: Collection[str] = ()) -> dict[str, Parameter]:
    """Return the parameters of a command for these settings, or for all. A flag that is not given is None."""
    fields = {name: field for name, field in ServerSettings.model_fields.items() if name not in NOT_FLAGS}
    flags = {name: SHARED.get(name) or _flag(name, field) for name, field in fields.items()}
    return {
        name: Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=flag)
        for name, flag in flags.items()
        if name in (names or flags)
    }


def _flag(name: str, field: FieldInfo) -> Any:
    """Return the type and the description of a flag. What is no plain value is text, which pydantic reads."""
    given = field.annotation
    kinds = [kind for kind in get_args(given) if kind is not type(None)] or [given]
    alternatives = len(kinds) > 1 or any(isinstance(one, BeforeValidator) for one in field.metadata)
    only = None if alternatives else next(iter(get_args(kinds[0])), kinds[0])  # without its Annotated
    kind: Any = list[str] if given == list[str] else only if only in (bool, int, float, Path) else str
    flag, is_on = f"--{name.replace('_', '-')}", field.default is True
    names = (f"{flag}/--no-{flag[2:]}",) if is_on else ("-v", flag) if name == "voice" else (flag,)
    more: dict[str, Any] = {"autocompletion": options.complete_voice} if name == "voice" else {}
    if get_origin(given) is Literal:
        more["metavar"] = "|".join(get_args(given))
    default = str(field.default) if field.default and not is_on else False
    return Annotated[kind | None, option(field.description or "", *names, default=default, **more)]
