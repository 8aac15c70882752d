"""The last signs: operators between words, and whatever no other rule has claimed."""

from __future__ import annotations

from typing import Final

from nightingale.text.english.rule import Rule, any_of, rule

NAMES: Final = {
    "&": "and", "@": "at", "%": "percent", "+": "plus", "=": "equals", "°": "degrees", "×": "times",
    "÷": "divided by", "±": "plus or minus", "≈": "approximately", "≠": "is not equal to", "≤": "at most",
    "≥": "at least", "€": "euros", "£": "pounds", "¥": "yen", "₹": "rupees", "$": "dollars", "¢": "cents",
    "∞": "infinity", "√": "the square root of", "§": "section", "№": "number", "♯": "sharp", "♭": "flat",
}  # fmt: skip

RULES: Final[tuple[Rule, ...]] = (
    rule(r"\b([Cc])\+\+", r"\1 plus plus"),
    rule(r"\b([CFGAD])#", r"\1 sharp"),
    rule(r"(?:<=|=<)", " at most "),
    rule(r">=", " at least "),
    rule(r"(?:!=|<>)", " is not equal to "),
    rule(r"[-=]{1,2}>|→|⇒", ", "),
    rule(r"(?<=[a-z]) < (?=\w)", " is less than "),
    rule(r"(?<=[a-z]) > (?=\w)", " is greater than "),
    rule(r"(?<=[a-z])/(?=[a-z])", " or "),
    rule(r"[/\\_^*~|]", " "),
    rule(r"[\[{]", "("),
    rule(r"[\]}]", ")"),
    rule(any_of(NAMES), lambda m: f" {NAMES[m[0]]} "),
)

# A dash between words is heard as a comma; inside a word it stays.
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
