"""Rules for operators and for all symbols that no other rule replaced."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english.rule import Rule, any_of, listed, rule

NAMES: Final = {
    "&": "and", "@": "at", "%": "percent", "+": "plus", "=": "equals", "°": "degrees", "×": "times",
    "÷": "divided by", "±": "plus or minus", "≈": "approximately", "≤": "at most",
    "≥": "at least", "€": "euros", "£": "pounds", "¥": "yen", "₹": "rupees", "$": "dollars", "¢": "cents",
    "∞": "infinity", "√": "the square root of", "§": "section", "№": "number", "♯": "sharp", "♭": "flat",
}  # fmt: skip

COMPARISON_WORDS: Final = {"<": "less than", ">": "greater than"}
AFFECTIONATE_WORDS: Final = listed(
    "you ya thanks love loved luv hugs kisses guys everyone night bye miss xoxo"
)
"""Words after which <3 is a heart. After other words it may be a comparison."""


def _compared(match: re.Match[str]) -> str:
    """Read "x<5" with a verb, and "<5%" without."""
    before = match.string[max(0, match.start() - 1) : match.start()]
    return f"{' is' if before.isalnum() or before in tuple(')%°') else ''} {COMPARISON_WORDS[match[1]]} "


# Before numbers become words.
COMPARISONS: Final[tuple[Rule, ...]] = (
    rule(r"\b([Ii]) <3 (?=(?!and\b|or\b|then\b)[A-Za-z])", r"\1 love "),
    rule(rf"\b((?i:{any_of(AFFECTIONATE_WORDS)}))([.,!]?) ?<3+(?![\d%]|\.\d| [a-z])", r"\1\2 "),
    rule(r"(?<![<>=-])([<>])(?=[$£€+-]?\.?\d)", _compared),
    rule(r"(?<![<>=-])(?<![\w)%°\]\"'] )([<>]) (?=[$£€+-]?\.?\d)", _compared),
)

RULES: Final[tuple[Rule, ...]] = (
    rule(r"\b([Cc])\+\+", r"\1 plus plus"),
    rule(r"\b([CFGAD])#", r"\1 sharp"),
    rule(r"(?:<=|=<)", " at most "),
    rule(r">=", " at least "),
    rule(r"(?:!=|<>)", " is not equal to "),
    rule(r"[-=]{1,2}>|→|⇒", ", "),
    rule(r"<-{1,2}(?= )", ", "),
    rule(r"(?<=[A-Za-z)])( ?)<\1(?=[A-Za-z(])", " is less than "),
    rule(r"(?<=[A-Za-z)])( ?)>\1(?=[A-Za-z(])", " is greater than "),
    rule(r"(?<![A-Za-z])([A-Za-z])( ?)\*\2(?=[A-Za-z](?![A-Za-z]))", r"\1 times "),
    rule(r"(?<=[A-Za-z)])\^(?=[A-Za-z(])|(?<=\b[A-Za-z]) \^ (?=[A-Za-z(])", " to the power of "),
    rule(r"(?<=[a-z])/(?=[a-z])", " or "),
    rule(r"[/\\_^*~|]", " "),
    rule(r"[\[{]", "("),
    rule(r"[\]}]", ")"),
    rule(any_of(NAMES), lambda m: f" {NAMES[m[0]]} "),
)

# A dash between words sounds like a comma; inside a word it stays.
DASHES: Final[tuple[Rule, ...]] = (
    rule(r"\s+", " "),
    rule(r" ?(?:—|–|--+) ?", ", "),
    rule(r" -+(?= |$)|(?<= )-+ ?|^-+ ?", ", "),
    rule(r"-+(?![A-Za-z])", ""),
    rule(r"(?<![A-Za-z])-+", " "),
)

SPACING: Final[tuple[Rule, ...]] = (
    rule(r"[^A-Za-z.,!?;:'\"()-]+", " "),
    rule(r"\(\s*[.,!?;:'\"\s-]*\)", " "),
    rule(r"\(\s+", "("),
    rule(r" (?=[.,!?;:)])", ""),
    rule(r"[,;:](?:\s*[,;:])+", ","),
    rule(r"[,;:]+(?=[.!?])", ""),
    rule(r"(?<=[.!?])\s*[,;:]+", ""),
    rule(r"(?<=[.!?,;:])(?=[A-Za-z(])", " "),
    rule(r"\.{4,}", "..."),
    rule(r"([!?]{3})[!?]+", r"\1"),
    rule(r"\s+", " "),
    rule(r"^[\s.,!?;:)-]+", ""),
)
