"""Rules for percentages and units of measurement."""

from __future__ import annotations

from typing import Final

from nightingale.text.english import words
from nightingale.text.english.rule import Match, Rule, any_of, fill
from nightingale.text.tables import word_map

UNITS: Final[dict[str, tuple[str, str]]] = word_map("units")
INCH: Final = ("inch", "inches")
"""Only written as "in." before a lower-case letter: "in" is nearly always the preposition."""
ONLY_ATTACHED: Final = frozenset({"l", "us", "ha"})
"""After a space these are more often a word or a letter than a unit."""

NUMBER: Final = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
START: Final = r"(?<![\w.,])"
"""Start of a separate number."""
PER_UNIT: Final = {unit: names[0] for unit, names in UNITS.items() if unit.isalpha()} | word_map("per")
_PER: Final = rf"(?:\s?/\s?(?P<per>{any_of(PER_UNIT)})\b(?: (?P<per_power>squared|cubed)\b)?)?"
POWERS: Final = {"squared": "square ", "cubed": "cubic ", None: ""}


def is_one(figures: str) -> bool:
    return figures.replace(",", "") == "1"


def _fraction_measure(match: Match) -> str:
    """Replace only the unit; the fraction is normalized later. 1/2 tsp is one half teaspoon."""
    unit = match["unit"]
    if unit in ONLY_ATTACHED:
        return match[0]
    names = INCH if unit == "in." else UNITS[unit]
    return f"{match['fraction']} {names[bool(match['whole'])]}"


def _measure(match: Match) -> str:
    figures, gap, unit, power = match["figures"], match["gap"], match["unit"], match["power"]
    if gap and unit in ONLY_ATTACHED:
        return match[0]
    if gap == "-":
        return f"{words.number(figures)}-{UNITS[unit][0]}"
    said = UNITS[unit][not is_one(figures)]
    said = f"{said} {power}" if power and "/" in unit else f"{POWERS[power]}{said}"
    per = f" per {POWERS[match['per_power']]}{PER_UNIT[match['per']]}" if match["per"] else ""
    return f"{words.number(figures)} {said}{per}"


RULES: Final = (
    Rule(
        rf"{START}({NUMBER})({any_of('scales')})"
        rf"(?= (?:(?:new|more|other|active|young|extra|daily|monthly) )?(?:{any_of('counted')})\b)",
        "{1:number} {2:scales}",
    ),
    Rule(rf"{START}({NUMBER})\s?%", "{1:number} percent"),
    Rule(
        r"(?<![\w.])(\d)\s?(?:ft\.?|'|feet)\s?(\d{1,2})\s?(?:in\.?\b|\"|inches)",
        "{1:cardinal} foot {2:cardinal}",
    ),
    Rule(r"(?<=\d) ?sq\. (?=ft\b|mi\b)", " sq "),
    Rule(
        rf"(?<=\d)([ -]?(?:sq )?(?:{any_of('dotted_units')}))"
        r"\.(?=[,;)]| [a-z]| \d{1,2} ?(?:in|oz|mins?|secs?)\b)",
        "{1}",
    ),
    Rule(
        # Only reduced fractions: "8/16 GB" has two sizes.
        r"(?<![\w.,/])"
        r"(?P<fraction>(?P<whole>\d{1,3} )?(?:1/2|[12]/3|[13]/4|[1357]/8|(?:[13579]|1[135])/16))[ -]?"
        rf"(?P<unit>(?:{any_of(UNITS)})(?![\w°/])(?!'\w)|in\.(?=[,;)]| [a-z]))",
        _fraction_measure,
    ),
    Rule(
        rf"(?<![\w.,/])({NUMBER})([ -]?)in\.(?=[,;)]| [a-z])",
        lambda m: fill("{1:number}{2}", m) + INCH[m[2] != "-" and not is_one(m[1])],
    ),
    Rule(
        rf"{START}(?P<figures>{NUMBER})(?P<gap>[ -]?)(?P<unit>{any_of(UNITS)})(?![\w°])(?!'\w)"
        rf"(?: (?P<power>squared|cubed))?{_PER}",
        _measure,
    ),
)
