"""Rules for all other numbers: ordinals, fractions, ranges, versions, codes and plain numbers."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import lexicon, words
from nightingale.text.english.measures import NUMBER, ONLY_ATTACHED, UNITS
from nightingale.text.english.rule import Rule, any_of, listed, rule

FIXED: Final = {
    "24/7": "twenty-four seven",
    "9/11": "nine eleven",
    "50/50": "fifty-fifty",
    "20/20": "twenty twenty",
}
DENOMINATORS: Final = {2: ("half", "halves"), 4: ("quarter", "quarters")}
FRACTION_DENOMINATORS: Final = frozenset({2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32, 64, 100, 1000})
PAIRED_NAMES: Final = listed(
    "Boeing Airbus Flight flight Room room Route Highway Interstate Suite Apartment Apt Unit Bus bus "
    "Train train"
)
STREETS: Final = (*lexicon.STREETS, *lexicon.STREETS.values(), "Way", "Terrace")
SCALES: Final = {"M": "million", "B": "billion"}


def _fraction(above: str, below: str) -> str | None:
    """Return a fraction in words, or None where the slash more likely means something else."""
    if len(above) > 4 or len(below) > 4 or above.startswith("0") or below.startswith("0"):
        return None
    top, bottom = int(above), int(below)
    if bottom == 10 and top <= 10:
        return f"{words.cardinal(top)} out of ten"
    if bottom not in FRACTION_DENOMINATORS or (top >= bottom and bottom > 4):
        return None
    part = words.ordinal(bottom)
    one, many = DENOMINATORS.get(bottom, (part, f"{part}s"))
    return f"{words.cardinal(top)} {one if top == 1 else many}"


def _mixed(match: re.Match[str]) -> str:
    part = _fraction(match[2], match[3])
    if part is None:
        return match[0]
    return f"{words.whole(match[1])} and {part.replace('one ', 'a ', 1) if match[2] == '1' else part}"


def _slashed(match: re.Match[str]) -> str:
    if match[0] in FIXED:
        return FIXED[match[0]]
    return _fraction(match[1], match[2]) or f"{words.whole(match[1])} slash {words.whole(match[2])}"


def _version(figures: str) -> str:
    return " point ".join(words.whole(part) for part in figures.split("."))


def _paired(figures: str) -> str:
    """Read three and four digits as in house numbers: 221 is "two twenty-one"."""
    if len(figures) not in (3, 4) or figures.startswith("0"):
        return words.whole(figures)
    return words.year(figures)


def _power(match: re.Match[str]) -> str:
    """Read a power of a number or a letter, with an optional unit."""
    base = words.number(match[1]) if match[1][0].isdigit() else match[1]
    sign = "minus " if match[2] == "-" else ""
    unit = f" {UNITS[match['unit']][1]}" if match["unit"] else ""
    return f"{base} to the power of {sign}{words.whole(match[3])}{unit}"


def _scientific(match: re.Match[str]) -> str:
    sign = "minus " if match[2] == "-" else ""
    return f"{words.number(match[1])} times ten to the power of {sign}{words.whole(match[3])}"


def _by(match: re.Match[str]) -> str:
    return f"{_paired(match[1])} by {_paired(match[2])}"


EARLY: Final[tuple[Rule, ...]] = (
    # Before money and units: what joins two numbers, and a sign before one.
    rule(
        r"(?<![\w.,])(\d{1,15}(?:\.\d{1,15})?) ?(?:\^|\*\*) ?([+-]?)(\d{1,15})(?!\d)"
        rf"(?: (?P<unit>{any_of(UNITS.keys() - ONLY_ATTACHED)})(?![\w°/'^]| squared| cubed))?",
        _power,
    ),
    rule(r"(?<![A-Za-z])([A-Za-z]|\)) ?\^ ?([+-]?)(\d{1,15})(?!\d)(?P<unit>)", _power),
    rule(r"\bv(?:er)?\.? ?(?=\d+\.\d)", "version "),
    rule(r"\bver\. ?(?=\d)", "version "),
    rule(r"(?<=\d) - (?=\d[\d.,]{0,20}\s?=)", " minus "),
    rule(r"(?<=[\d%])\s?[–—]\s?(?=[$£€]?\.?\d)", " to "),
    rule(r"(?<![\w.,-])(\d[\d.,]{0,20}%?) ?- ?(?=\d[\d.,]{0,20}(?![\w.,]*-))", r"\1 to "),
    rule(r"(?<![\w.,)\]\-–'\"])-(?=[$£€]?\.?\d)", "minus "),
    rule(r"(?<![\w.,)\]])\+(?=[$£€]?\.?\d)", "plus "),
    rule(r"(?<![\w.])(\d{1,15}(?:\.\d{1,15})?)[eE]([+-]?)(\d{1,4})(?!\w)", _scientific),
    rule(r"(?<=[\d)])( ?)\*\1(?=[\d(A-Za-z])|(?<=\b[A-Za-z])( ?)\*\2(?=\d)", " times "),
    rule(r"(?<![\w.])(\d{1,5})\s?[x×]\s?(\d{1,5})(?![\w.])", _by),
    rule(r"(?<![\w.])(\d{1,9}(?:\.\d{1,9})?)[x×](?!\w)", lambda m: f"{words.number(m[1])} times"),
    rule(
        r"(?<![\w.,])(\d{3,4})([A-Z]?) (?=(?:[NSEW]\.? )?(?:[A-Z][a-z]{1,20} ){1,3}"
        rf"(?:{any_of(STREETS)})\b)",
        lambda m: f"{_paired(m[1])} {m[2]} ".replace("  ", " "),
    ),
    rule(r"(?<![\w.])([A-Z]{1,4})-?(\d{3,4})(?![\w%]|[.,-]\d)", lambda m: f"{m[1]} {_paired(m[2])}"),
    rule(rf"\b({any_of(PAIRED_NAMES)}) (\d{{3,4}})(?![\w%]|[.,]\d)", lambda m: f"{m[1]} {_paired(m[2])}"),
)

LATE: Final[tuple[Rule, ...]] = (
    rule(
        r"(?<![\w.])(\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?:st|nd|rd|th)\b",
        lambda m: words.ordinal(int(m[1].replace(",", ""))),
        re.IGNORECASE,
    ),
    rule(r"(?<![\w/.,])(\d{1,9})[ -](\d{1,4})/(\d{1,4})(?![\w/])", _mixed),
    rule(r"(?<![\w/.,])(\d{1,9})/(\d{1,9})(?![\w/])", _slashed),
    rule(r"(?<![\w.,])(\d{1,9}(?:\.\d{1,9}){2,6})(?![\w]|\.\d)", lambda m: _version(m[1])),
    rule(
        r"(?<![\w.,])(\d{1,3}(?:\.\d)?)([MB])\b(?= [a-z])", lambda m: f"{words.number(m[1])} {SCALES[m[2]]}"
    ),
    rule(rf"(?<![\d.,])({NUMBER})(?=\D|$)", lambda m: _bounded(m, m[1])),
    rule(r"\d+", lambda m: _bounded(m, m[0])),
)


def _bounded(match: re.Match[str], figures: str) -> str:
    """Read a number and separate it from an adjacent word: "word26" is "word twenty-six"."""
    text, start, end = match.string, match.start(), match.end()
    before = " " if start and (text[start - 1].isalpha() or text[start - 1] == "-") else ""
    after = " " if text[end : end + 1].isalpha() else ""
    return f"{before}{words.number(figures)}{after}"
