"""Rewriting of text that SSML's `say-as` marks: characters, digits, dates and telephone numbers."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.multilingual.language_data import language_table
from nightingale.text.tables import word_map

INTERPRETATIONS: Final = ("characters", "spell-out", "digits", "date", "telephone")
DATE_FORMATS: Final = ("mdy", "dmy", "ymd", "md", "dm", "ym", "my", "y")
CENTURY_LIMIT: Final = 70
"""A year of two digits below this is one of the 2000s."""


def read_as(kind: str, text: str, date_format: str, language: str | None) -> str | None:
    """Return the text as the normalizer reads it, or None if the kind is unknown or does not fit the text."""
    if kind in ("characters", "spell-out"):
        return " ".join(character.upper() for character in text if not character.isspace())
    if kind == "digits":
        return " ".join(filter(str.isdecimal, text)) or None
    if kind == "telephone":
        groups = re.findall(r"\d+", text)
        table = language_table(language or "en")
        plus = f"{table['words']['plus'] if table else 'plus'} " if text.startswith("+") else ""
        return plus + ", ".join(" ".join(group) for group in groups) if groups else None
    return _date(text, date_format.lower(), language or "en") if kind == "date" else None


def _date(text: str, order: str, language: str) -> str | None:
    numbers = re.findall(r"\d+", text)
    if not order:
        first_is_year = bool(numbers) and len(numbers[0]) == 4
        order = "ymd" if first_is_year else "mdy" if language == "en" else "dmy"
        order = order if len(numbers) == 3 else "y" if first_is_year and len(numbers) == 1 else ""
    if order not in DATE_FORMATS or len(numbers) != len(order):
        return None
    values = {letter: int(number) for letter, number in zip(order, numbers, strict=True)}
    if not (1 <= values.get("m", 1) <= 12 and 1 <= values.get("d", 1) <= 31):
        return None
    year = values.get("y")
    if year is not None and year < 100:
        year += 2000 if year < CENTURY_LIMIT else 1900
    if "m" not in values:
        return str(year)
    if "d" in values and year is not None:
        return f"{year:04}-{values['m']:02}-{values['d']:02}"
    return _partial_date(year, values["m"], values.get("d"), language)


def _partial_date(year: int | None, month: int, day: int | None, language: str) -> str:
    """Return a date without its year or day, with the name of the month."""
    table = language_table(language)
    if table is None:
        name = list(dict.fromkeys(word_map("months").values()))[month - 1]
        return f"{name} {day or year}"
    name = table["months"].split()[month - 1]
    if language in ("ja", "zh"):
        return f"{year}年{month}月" if year else f"{month}月{day}日"
    if language == "ko":
        return f"{year}년 {month}월" if year else f"{month}월 {day}일"
    of = f"{table['date_of']} " if "date_of" in table else ""
    mark = "." if table.get("day_mark", "").startswith(r"\.") else ""
    return f"{name} {of}{year}" if year else f"{day}{mark} {of}{name}"
