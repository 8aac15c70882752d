"""Defaults of the options of some commands, from tables of nightingale.toml."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, get_args

from nightingale.cli.arguments import parameters_of
from nightingale.cli.options import Option
from nightingale.errors import ConfigError

NOT_DEFAULTS = frozenset({"file", "batch", "config", "as_json", "show_list"})
"""Parameters that say what to do once, and cannot be defaults."""
CAPTION_FILES = frozenset({"srt", "vtt", "timestamps"})
"""These neither, where they name a file; `book --srt` is a switch."""


def takes_defaults(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with defaults for its options from the table of its name. It has the option --config."""

    @wraps(command)
    def run(*arguments: Any, **named: Any) -> None:
        given = inspect.signature(command).bind(*arguments, **named).arguments
        given |= given.pop("request", {})
        command(**with_defaults(command, given))

    return run


def with_defaults(command: Callable[..., None], given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command, with those that were not given from its table in nightingale.toml."""
    parameters = parameters_of(command)
    given = {name: one.default for name, one in parameters.items() if one.default is not one.empty} | given
    defaults = _read_table(command, given["config"])
    missing = {name for name, value in given.items() if value == parameters[name].default}
    return given | {name: value for name, value in defaults.items() if name in missing}


def _read_table(command: Callable[..., None], config: str | None) -> dict[str, Any]:
    from nightingale.files import default_config

    path = default_config() if config is None else Path(config).expanduser()
    if not path.is_file():
        if config is None:
            return {}
        raise ConfigError("the configuration file does not exist", got=config, fix="Check the path.")
    import tomllib

    try:
        table = tomllib.loads(path.read_text("utf-8")).get(command.__name__, {})
    except (ValueError, OSError) as error:
        raise ConfigError(
            "the configuration file is not valid TOML", got=str(error), fix=f"Correct {path}."
        ) from error
    kinds: dict[str, Any] = {}
    parameters: dict[str, str] = {}  # by the long name of the option
    for name, parameter in parameters_of(command).items():
        kind, about = get_args(parameter.annotation)
        if name in NOT_DEFAULTS or not isinstance(about, Option):
            continue
        if kind is bool or name not in CAPTION_FILES:
            key = about.names[-1].strip("-").replace("-", "_") if about.names else name
            kinds[key], parameters[key] = kind, name
    fix = f"Correct [{command.__name__}] in {path}."
    if not isinstance(table, dict) or (unknown := table.keys() - kinds.keys()):
        got = ", ".join(sorted(unknown)) if isinstance(table, dict) else repr(table)
        raise ConfigError("unknown default", got=got, allowed=", ".join(kinds), fix=fix)
    for name, value in table.items():
        wanted = [kind for kind in (get_args(kinds[name]) or (kinds[name],)) if kind is not type(None)]
        if Path in wanted and isinstance(value, str):
            table[name] = Path(value).expanduser()
            continue
        accepted = (
            (int, float) if float in wanted else tuple(kind for kind in wanted if isinstance(kind, type))
        )
        is_list = (
            list[str] in wanted and isinstance(value, list) and all(isinstance(one, str) for one in value)
        )
        if not is_list and (
            not isinstance(value, accepted) or (isinstance(value, bool) and bool not in wanted)
        ):
            names = " or ".join("list of str" if kind == list[str] else kind.__name__ for kind in wanted)
            raise ConfigError(
                f"the default {name!r} has a wrong type", got=repr(value), allowed=names, fix=fix
            )
    return {parameters[key]: value for key, value in table.items()}
