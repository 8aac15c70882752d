"""Rules for percentages and units of measurement."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.rule import Rule, any_of, fill
from nightingale.text.normalized_text import Match, Part, fill_groups
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
_WINDOW_CHARS: Final = 200
POWERS: Final = {"squared": "square ", "cubed": "cubic ", None: ""}


def is_one(figures: str) -> bool:
    return figures.replace(",", "") == "1"


def _fraction_measure(match: Match) -> str:
    """Replace only the unit; the fraction is normalized later. 1/2 tsp is one half teaspoon."""
    unit = match["unit"]
    if unit in ONLY_ATTACHED:
        return match[0]
    names = INCH if unit == "in." else UNITS[unit]
    return fill("{fraction} {unit}", match, unit=names[bool(match["whole"])])


def _measure(match: Match) -> str:
    figures, gap, unit, power = match["figures"], match["gap"], match["unit"], match["power"]
    if gap and unit in ONLY_ATTACHED:
        return match[0]
    if gap == "-":
        return f"{words.number(figures)}-{UNITS[unit][0]}"
    said = UNITS[unit][not is_one(figures)]
    said = f"{said} {power}" if power and "/" in unit else f"{POWERS[power]}{said}"
    per = f" per {POWERS[match['per_power']]}{PER_UNIT[match['per']]}" if match["per"] else ""
    return fill("{figures:number} {unit}{per}", match, unit=said, per=per)


def _scaled(match: Match) -> str:
    per = f" per {POWERS[match['per_power']]}{PER_UNIT[match['per']]}" if match["per"] else ""
    unit = f"{POWERS[match['power']]}{UNITS[match['unit']][1]}"
    return fill("{figures:number} {scale} {unit}{per}", match, unit=unit, per=per)


def _duration(match: Match) -> str:
    """Read "1h 30m": the m of a single part would be meters."""
    parts = list[Part]()
    for name, names in DURATION_PARTS.items():
        if match[name]:
            parts += [(None, " "), (name, f"{words.cardinal(match[name])} {names[int(match[name]) != 1]}")]
    return fill_groups(match, parts[1:]) if len(parts) > 2 else match[0]


def _inches(match: Match) -> str:
    """Read the mark for inches; after an open quotation it closes that instead."""
    before = match.string[max(0, match.start() - _WINDOW_CHARS) : match.start()]
    after = match.string[match.end() : match.end() + _WINDOW_CHARS]
    if len(re.findall(r"(?<!\d)\"", before)) % 2:
        return match[0]
    noun = rf"(?: (?:and|or|to|x|by) {NUMBER}\"){{0,3}} (?!(?:{any_of('extents')})\b)[a-z]{{3,}}"
    is_single = is_one(match[1]) or re.match(rf"{noun}| [x×] ?\d", after)
    return fill(f"{{1}} {INCH[not is_single]}", match)


DURATION_PARTS: Final = {
    "days": ("day", "days"),
    "hours": ("hour", "hours"),
    "minutes": ("minute", "minutes"),
    "seconds": ("second", "seconds"),
}
DURATIONS: Final = (
    Rule(
        rf"{START}(?=\d{{1,4}}[dhm]\s?\d)(?:(?P<days>\d{{1,4}})d\s?)?(?:(?P<hours>\d{{1,3}})h\s?)?"
        r"(?:(?P<minutes>\d{1,2})m(?:in)?)?(?:\s?(?P<seconds>\d{1,2})s)?(?!\w|[.,]\d)",
        _duration,
    ),
    Rule(rf"\b((?:{any_of('lasting')}) )(\d{{1,4}})s\b(?! and)", "{1}{2:cardinal} seconds"),
    Rule(
        r"\b([Ff]or |[Ii]n )(\d{1,4})s(?=[.,;:!?)]|$| (?:at|on|then|before|and)\b)", "{1}{2:cardinal} seconds"
    ),
)

RULES: Final = (
    Rule(
        rf"{START}(?P<figures>{NUMBER}) (?P<scale>thousand|million|billion|trillion) "
        rf"(?P<unit>{any_of(unit for unit in UNITS if unit not in ONLY_ATTACHED)})(?![\w°])(?!'\w)(?:\.(?= [a-z]))?"
        rf"(?: (?P<power>squared|cubed))?{_PER}",
        _scaled,
    ),
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
    Rule(r"(?<![\w.])(\d{1,4})' ?[x×] ?(\d{1,4})'(?!\w)", "{1:cardinal} foot by {2:cardinal} foot"),
    Rule(rf"(?<![\w.,])((?:\d{{1,3}} )?\d{{1,3}}/\d{{1,3}}|{NUMBER})\"(?!\w)", _inches),
    Rule(rf"{START}(\d{{1,4}})'(?= (?:wide|tall|long|deep|thick|high)\b)", "{1} feet"),
    Rule(r"(?:(?<=inch)|(?<=foot)) ?[x×] ?(?=\d)", " by "),
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
        lambda m: fill("{1:number}{2}" + INCH[m[2] != "-" and not is_one(m[1])], m),
    ),
    Rule(
        rf"{START}(?P<figures>{NUMBER})(?P<gap>[ -]?)(?P<unit>{any_of(UNITS)})(?![\w°])(?!'\w)"
        rf"(?: (?P<power>squared|cubed))?{_PER}",
        _measure,
    ),
)
