"""Rules for all other numbers: ordinals, fractions, ranges, versions, codes and plain numbers."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.measures import NUMBER, ONLY_ATTACHED, UNITS
from nightingale.text.english.rule import Rule, any_of, fill
from nightingale.text.normalized_text import Match
from nightingale.text.tables import word_map

DENOMINATORS: Final = {2: ("half", "halves"), 4: ("quarter", "quarters")}
FRACTION_DENOMINATORS: Final = frozenset({2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32, 64, 100, 1000})
STREETS: Final = (*word_map("streets"), *word_map("streets").values(), "Way", "Terrace")


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


def _mixed(match: Match) -> str:
    part = _fraction(match["above"], match["below"])
    if part is None:
        return match[0]
    part = part.replace("one ", "a ", 1) if match["above"] == "1" else part
    return fill("{whole:whole} {above}", match, above=f"and {part}")


def _slashed(match: Match) -> str:
    fixed = word_map("fixed_fractions").get(match[0])
    return fixed or _fraction(match[1], match[2]) or fill("{1:whole} slash {2:whole}", match)


def _power(match: Match) -> str:
    """Read a power of a number or a letter, with an optional unit."""
    base = "{1:number}" if match[1][0].isdigit() else "{1}"
    unit = f" {UNITS[match['unit']][1]}" if match["unit"] else ""
    return fill(f"{base} {_to_the_power(match)}{{unit}}", match, unit=unit)


def _to_the_power(match: Match) -> str:
    return f"to the power of {'minus ' if match[2] == '-' else ''}{words.whole(match[3])}"


def _bounded(match: Match) -> str:
    """Read a number and separate it from an adjacent word: "word26" is "word twenty-six"."""
    text, start, end = match.string, match.start(), match.end()
    before = " " if start and (text[start - 1].isalpha() or text[start - 1] == "-") else ""
    after = " " if text[end : end + 1].isalpha() else ""
    return f"{before}{words.number(match[0])}{after}"


EARLY: Final = (
    # Before money and units: what joins two numbers, and a sign before one.
    Rule(
        r"(?<![\w.,])(\d{1,15}(?:\.\d{1,15})?) ?(?:\^|\*\*) ?([+-]?)(\d{1,15})(?!\d)"
        rf"(?: (?P<unit>{any_of(UNITS.keys() - ONLY_ATTACHED)})(?![\w°/'^]| squared| cubed))?",
        _power,
    ),
    Rule(r"(?<![A-Za-z])([A-Za-z]|\)) ?(?:\^|\*\*) ?([+-]?)(\d{1,15})(?!\d)(?P<unit>)", _power),
    Rule(r"\bv(?:er)?\.? ?(?=\d+\.\d)|\bver\. ?(?=\d)", "version "),
    Rule(r"(?<=\d) - (?=\d[\d.,]{0,20}\s?=)", " minus "),
    Rule(r"(?<=[\d%])\s?[–—]\s?(?=[$£€]?\.?\d)", " to "),
    Rule(r"(?<![\w.,-])(\d[\d.,]{0,20}%?) ?- ?(?=\d[\d.,]{0,20}(?![\w.,]*-))", "{1} to "),
    Rule(r"(?<![\w.,)\]\-–'\"])-(?=[$£€]?\.?\d)", "minus "),
    Rule(r"(?<![\w.,)\]])\+(?=[$£€]?\.?\d)", "plus "),
    Rule(
        r"(?<![\w.])(\d{1,15}(?:\.\d{1,15})?)[eE]([+-]?)(\d{1,4})(?!\w)",
        lambda m: f"{words.number(m[1])} times ten {_to_the_power(m)}",
    ),
    Rule(r"(?<=[\d)])( ?)\*\1(?=[\d(A-Za-z])|(?<=\b[A-Za-z])( ?)\*\2(?=\d)", " times "),
    Rule(r"(?<![\w.])(\d{1,5})\s?[x×]\s?(\d{1,5})(?!\w|\.\d)", "{1:paired} by {2:paired}"),
    Rule(r"(?<![\w.])(\d{1,9}(?:\.\d{1,9})?)[x×](?!\w)", "{1:number} times"),
    Rule(
        r"(?<![\w.,])(\d{3,4})([A-Z]?) (?=(?:[NSEW]\.? )?(?:[A-Z][a-z]{1,20} ){1,3}"
        rf"(?:{any_of(STREETS)})\b)",
        "{1:paired}{2: } ",
    ),
    Rule(r"(?<![\w.])([A-Z]{1,4})-?(\d{3,4})(?![\w%]|[.,-]\d)", "{1} {2:paired}"),
    Rule(rf"\b({any_of('paired_names')}) (\d{{3,4}})(?![\w%]|[.,]\d)", "{1} {2:paired}"),
)

LATE: Final = (
    Rule(
        r"(?<![\w.])(\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?:st|nd|rd|th)\b",
        lambda m: words.ordinal(m[1].replace(",", "")),
        re.IGNORECASE,
    ),
    Rule(r"(?<![\w/.,])(?P<whole>\d{1,9})[ -](?P<above>\d{1,4})/(?P<below>\d{1,4})(?![\w/])", _mixed),
    Rule(r"(?<![\w/.,])(\d{1,9})/(\d{1,9})(?![\w/])", _slashed),
    Rule(
        r"(?<![\w.,])(\d{1,9}(?:\.\d{1,9}){2,6})(?![\w]|\.\d)",
        lambda m: " point ".join(map(words.whole, m[1].split("."))),
    ),
    Rule(r"(?<![\w.,])(\d{1,3}(?:\.\d)?)([MB])\b(?= [a-z])", "{1:number} {2:money_scales}"),
    Rule(rf"(?<![\d.,]){NUMBER}(?=\D|$)", _bounded),
    Rule(r"\d+", _bounded),
)
