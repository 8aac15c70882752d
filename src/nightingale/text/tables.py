"""Access to the tables of words: `tables.json`, and `notation.json` for technical notation."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

FILES: Final = ("tables.json", "notation.json")


@cache
def _tables() -> dict[str, Any]:
    # Not importlib.resources, which takes longer to import than this file to read.
    texts = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in FILES)
    return {name: table["words"] for text in texts for name, table in json.loads(text).items()}


def word_map(name: str) -> dict[str, Any]:
    """Return a table of written forms and what each is read as."""
    words: dict[str, Any] = _tables()[name]
    return words


@cache
def word_list(name: str) -> tuple[str, ...]:
    """Return the words of a list, or the written forms of a map."""
    words = _tables()[name]
    return tuple(words) if isinstance(words, dict) else tuple(" ".join(words).split())
