"""Reading of the text of `nightingale say`, and of the defaults of its options from nightingale.toml."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

from nightingale.errors import ConfigError, EmptyText, TextError

PIPE = "-"
NOT_DEFAULTS = frozenset({"text", "file", "batch", "config", "as_json", "srt", "vtt", "timestamps"})
"""Parameters that say what to do once, and cannot be defaults."""


def read_text(text: str | None, file: str | None) -> str | None:
    """Return TEXT, the contents of a file, or stdin; None if lines are to be typed at the terminal.

    Raises:
        TextError: The text is blank or not UTF-8, or the file cannot be read.
        ConfigError: Both a text and a file are given.
    """
    if text is not None and file is not None:
        raise ConfigError("there are two texts", got="TEXT and --file", fix="Leave one of them out.")
    if text is None and file is None and sys.stdin.isatty():
        return None
    source = text if file is None else file
    try:
        if source is None or source == PIPE:
            words = sys.stdin.buffer.read().decode("utf-8-sig")
        elif file is not None:
            words = Path(file).expanduser().read_bytes().decode("utf-8-sig")
        else:
            words = source
        words.encode()  # an argument that was not UTF-8 contains lone surrogates
    except UnicodeError as error:
        raise TextError(
            "the text is not UTF-8", got=str(error), fix="Convert it, for example with iconv."
        ) from error
    except OSError as error:
        got = f"{file}: {error.strerror or error}"
        raise TextError("the text file cannot be read", got=got, fix="Check the path.") from error
    if not words.strip():
        raise EmptyText(
            "there is nothing to say", got=repr(words[:20]), fix='For example: nightingale say "Hello."'
        )
    return words


def with_defaults(command: Callable[..., None], given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command, with those that were not given from its table in nightingale.toml."""
    parameters = inspect.signature(command).parameters
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
    for name, hint in get_type_hints(command, include_extras=True).items():
        if name not in NOT_DEFAULTS | {"return"}:
            kind, about = get_args(hint)
            key = about.names[-1].strip("-").replace("-", "_") if about.names else name
            kinds[key], parameters[key] = kind, name
    fix = f"Correct [{command.__name__}] in {path}."
    if not isinstance(table, dict) or (unknown := table.keys() - kinds.keys()):
        got = ", ".join(sorted(unknown)) if isinstance(table, dict) else repr(table)
        raise ConfigError("unknown default", got=got, allowed=", ".join(kinds), fix=fix)
    for name, value in table.items():
        wanted = [kind for kind in (get_args(kinds[name]) or (kinds[name],)) if kind is not type(None)]
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
