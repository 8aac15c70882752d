"""Punctuation normalization before tokenization: one function, and one table per model family.

The networks were trained on text normalized by these rules. Families differ only in what is replaced and in
which characters end a text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from nightingale.errors import EmptyText


@dataclass(frozen=True, slots=True, kw_only=True)
class PunctuationRules:
    """The replacements of one family, in order, and the characters that may end its text."""

    replacements: tuple[tuple[str, str], ...]
    enders: tuple[str, ...]


_COMMON: Final = (("—", "-"), ("–", "-"), (" ,", ","), ("“", '"'), ("”", '"'), ("‘", "'"), ("’", "'"))
_ENDERS: Final = (".", "!", "?", "-", ",")

ENGLISH: Final = PunctuationRules(
    replacements=(("...", ", "), ("…", ", "), (":", ","), (" - ", ", "), (";", ", "), *_COMMON),
    enders=_ENDERS,
)
MULTILINGUAL: Final = replace(ENGLISH, enders=(*_ENDERS, "、", "，", "。", "？", "！"))
TURBO: Final = replace(ENGLISH, replacements=(("…", ", "), (":", ","), *_COMMON))


def normalize_punctuation(text: str, rules: PunctuationRules) -> str:
    """Return the text with single spaces, plain quotes and dashes, a capital first letter and an ending."""
    if not text.strip():
        raise empty_text(text)
    # PARITY: upstream looks at the very first character, so text after a leading space keeps its lower-case
    #         letter. tests/text/test_punctuation.py::test_a_leading_space_hides_the_first_letter
    if text[0].islower():
        text = text[0].upper() + text[1:]
    text = " ".join(text.split())
    for old, new in rules.replacements:
        text = text.replace(old, new)
    text = text.rstrip(" ")
    return text if text.endswith(rules.enders) else text + "."


def empty_text(text: str) -> EmptyText:
    return EmptyText(
        "there is nothing to say", got=repr(text[:20]), allowed="text with at least one letter or digit"
    )
