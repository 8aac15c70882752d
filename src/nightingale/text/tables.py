"""Access to `tables.json`: the words of English normalization, and abbreviations of all languages."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _tables() -> dict[str, Any]:
    # Not importlib.resources, which takes longer to import than this file to read.
    text = Path(__file__).with_name("tables.json").read_text(encoding="utf-8")
    return {name: table["words"] for name, table in json.loads(text).items()}


def word_map(name: str) -> dict[str, Any]:
    """Return a table of written forms and what each is read as."""
    words: dict[str, Any] = _tables()[name]
    return words


@cache
def word_list(name: str) -> tuple[str, ...]:
    """Return the words of a list, or the written forms of a map."""
    words = _tables()[name]
    return tuple(words) if isinstance(words, dict) else tuple(" ".join(words).split())
