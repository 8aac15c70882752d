"""English text normalization: digits, symbols and abbreviations become words.

Wren is trained on text that this code normalized, and speaks text that it normalizes. Specific rules come
before general ones: addresses before dates, dates before times, prices before numbers. What no rule matches
is read as a plain number or dropped, so the result has only letters, spaces and . , ! ? ; : ' " - ( ).
"""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import (
    calendar,
    figures,
    measures,
    money,
    names,
    references,
    symbols,
    technical,
    web,
)
from nightingale.text.english.markup import clean
from nightingale.text.english.rule import apply_all
from nightingale.text.normalized_text import NormalizedText

BEGINNINGS: Final = (*web.RULES, *technical.ALGEBRA, *calendar.SPANS)
# Text without a digit skips these.
FIGURES: Final = (
    *technical.CODES,
    *symbols.COMPARISONS,
    *references.LABEL_RULES,
    *money.SPANS,
    *calendar.DATES,
    *references.DIGIT_RULES,
    *calendar.TIMES,
    *measures.DURATIONS,
    *calendar.YEARS,
    *figures.EARLY,
    *money.RULES,
    *measures.RULES,
)
MAX_PASSES: Final = 6
"""One pass is nearly always enough, and a second confirms it. The limit is for hostile texts."""


def normalize(text: str) -> str:
    """Return the text in words. Normalizing the result again changes nothing."""
    return str(read(text))


def read(text: str) -> NormalizedText:
    """Return the text in words, with what each of them came from."""
    normalized = NormalizedText.of(text)
    for _ in range(MAX_PASSES):
        before = normalized
        normalized = _one_pass(before)
        if normalized == before:
            break
    return normalized


def _one_pass(text: NormalizedText) -> NormalizedText:
    text = apply_all(BEGINNINGS, clean(text))
    if re.search("[0-9]", text):
        text = apply_all(FIGURES, text)
    text = apply_all((*calendar.SHORT, *names.ABBREVIATIONS), text)
    if re.search("[0-9]", text):
        text = apply_all(figures.LATE, text)
    text = apply_all(symbols.RULES, names.spell_capitals(apply_all(names.NUMERALS, text))).strip()
    return text if re.search("[A-Za-z]", text) else text.edit([(0, len(text), "")])
