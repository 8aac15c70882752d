"""Opening of the lexicon that a request or a server names: a TOML file, or words and respellings."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from nightingale.errors import ConfigError
from nightingale.text.respelling import Lexicon as Lexicon
from nightingale.text.respelling import lexicon_of

LexiconSource = Lexicon | str | Path | Mapping[str, str] | None


def open_lexicon(source: LexiconSource) -> Lexicon:
    """Return a lexicon from a file or a mapping; None is an empty one.

    Raises:
        ConfigError: The file cannot be read, or an entry is invalid.
    """
    if source is None or isinstance(source, Lexicon):
        return source or Lexicon()
    if isinstance(source, Mapping):
        return lexicon_of(source)
    try:
        tables = tomllib.loads(Path(source).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            "the lexicon cannot be read", got=f"{source}: {error}", allowed="a TOML file", param="lexicon"
        ) from error
    words = tables.pop("words", {})
    entries = tables.pop("entry", [])
    if tables or not isinstance(words, Mapping):
        raise ConfigError(
            "the lexicon has an unknown table",
            got=", ".join(tables) or "words",
            allowed="[words] and [[entry]]",
            param="lexicon",
        )
    return lexicon_of(words, entries)
