"""Text normalization for the languages of the multilingual model besides English.

Numbers, percentages, sums of money, dates, times, ordinals and common abbreviations become words. Each language is
a table (`data/*.toml`); a form that its table does not have stays as it is written.
"""

from __future__ import annotations

from functools import cache

from nightingale.text.multilingual.language_data import language_table
from nightingale.text.multilingual.readers import Reader
from nightingale.text.normalized_text import NormalizedText


def normalize(text: str, language: str) -> str:
    """Return the text in words; without a change if the language has no table."""
    return str(read(text, language))


def read(text: str, language: str) -> NormalizedText:
    """Return the text in words, with what each of them came from."""
    reader = _reader(language.lower())
    return NormalizedText.of(text) if reader is None else reader.read(text)


@cache
def _reader(code: str) -> Reader | None:
    table = language_table(code)
    return None if table is None else Reader(table)
