"""The order of reading. Each stage claims what it knows and leaves the rest to the next.

Specific before general: an address before a date, a date before a time, a price before a number. What
reaches the end unclaimed is read as a plain number or dropped, so the result has letters, spaces and
. , ! ? ; : ' " - ( ) and nothing else.
"""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import (
    calendar,
    figures,
    labels,
    measures,
    money,
    names,
    phones,
    scripture,
    symbols,
    web,
)
from nightingale.text.english.markup import clean
from nightingale.text.english.rule import Rule, read_all

BEGINNINGS: Final[tuple[Rule, ...]] = (*web.RULES, *calendar.SPANS)
# Rules about figures, which a text without a digit need not try.
FIGURES: Final[tuple[Rule, ...]] = (
    *symbols.COMPARISONS,
    *labels.RULES,
    *scripture.RULES,
    *money.SPANS,
    *calendar.DATES,
    *phones.RULES,
    *calendar.TIMES,
    *calendar.YEARS,
    *figures.EARLY,
    *money.RULES,
    *measures.RULES,
)
ABBREVIATIONS: Final[tuple[Rule, ...]] = (*calendar.SHORT, *names.ABBREVIATIONS)
ENDINGS: Final[tuple[Rule, ...]] = (*symbols.RULES, *symbols.DASHES, *symbols.SPACING)

MAX_READINGS: Final = 6
"""One reading nearly always settles a text and a second confirms it. The bound is for hostile texts."""


def normalize(text: str) -> str:
    """The text in words. Reading the result again changes nothing."""
    for _ in range(MAX_READINGS):
        read = _read_once(text)
        if read == text:
            break
        text = read
    return text


def _read_once(text: str) -> str:
    text = read_all(BEGINNINGS, clean(text))
    if has_digit(text):
        text = read_all(FIGURES, text)
    text = read_all(ABBREVIATIONS, text)
    if has_digit(text):
        text = read_all(figures.LATE, text)
    text = read_all(ENDINGS, names.read_names(text))
    return text.strip() if has_letter(text) else ""


def has_digit(text: str) -> bool:
    return re.search("[0-9]", text) is not None


def has_letter(text: str) -> bool:
    return re.search("[A-Za-z]", text) is not None
