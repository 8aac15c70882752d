"""Rules for sums of money: single, ranges, and as attributes (a hundred dollar bill)."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.measures import NUMBER, START, is_one
from nightingale.text.english.rule import Rule, any_of, fill
from nightingale.text.normalized_text import Match, Part, fill_groups
from nightingale.text.tables import word_map

CURRENCIES: Final[dict[str, tuple[str, str, str, str]]] = word_map("currencies")
MULTIPLIERS: Final = word_map("scales") | word_map("money_scales")
SCALES: Final = "thousand|million|billion|trillion"
_SIGN: Final = rf"(?P<sign>(?<![A-Za-z])(?:{any_of(CURRENCIES)})|(?<=[A-Za-z])[$£€¥₹₽₩₿])"
_SCALE: Final = rf"(?:\s?(?P<scale>{any_of(MULTIPLIERS)})\b|-(?P<joined>{SCALES})\b)?"
_PER: Final = rf"(?:\s?/\s?(?P<per>{any_of('per')}|[a-z]{{3,20}})\b)?"
_THING: Final = rf" (?!(?:{any_of('not_things')})\b)[a-z]{{2,20}}\b"
_LISTED_THING: Final = rf" (?:{any_of('things')})s?\b"

_DESCRIBES_AFTER: Final = (
    # What precedes the sum, and what follows a sum that is an attribute.
    (r"\b(?:[Aa]n?|[Aa]nother|[Ee]very|[Ee]ach) $", _THING),
    (
        r"\b(?:[Tt]he|[Tt]his|[Tt]hat|[Hh]is|[Hh]er|[Ii]ts|[Tt]heir|[Oo]ur|[Mm]y|[Yy]our|'s) $",
        _THING + _LISTED_THING,
    ),
)


def _describes(match: Match) -> bool:
    """Return whether the sum is an attribute, read in the singular: a five dollar bill."""
    if match["per"]:
        return False
    before = match.string[max(0, match.start() - 10) : match.start()]
    after = match.string[match.end() : match.end() + 48]
    if re.match(rf"-(?:an?|per)-[a-z]|{_LISTED_THING}", after) or (
        match["joined"] and re.match(_THING, after)
    ):
        return True
    return any(re.search(led, before) and re.match(thing, after) for led, thing in _DESCRIBES_AFTER)


def _sum(figures: str, scale: str | None, names: tuple[str, str, str, str], *, single: bool = False) -> str:
    one, many, cent, cents = names
    if single:
        many, cents = one, cent
    units, point, fraction = figures.replace(",", "").partition(".")
    if scale:
        return f"{words.number(figures)} {MULTIPLIERS[scale]} {many}"
    if not point:
        return f"{words.number(figures)} {one if is_one(figures) else many}"
    if len(fraction) != 2:
        return f"{words.number(figures)} {many}"
    parts = []
    if units.strip("0"):
        parts.append(f"{words.whole(units)} {one if units == '1' else many}")
    if fraction != "00":
        parts.append(f"{words.cardinal(int(fraction))} {cent if fraction == '01' else cents}")
    return " and ".join(parts) or f"zero {many}"


def _money(match: Match) -> str:
    scale, single = match["scale"] or match["joined"], _describes(match)
    # After letters that are no known country, the sum is a word of its own.
    gap = " " if match.string[max(0, match.start() - 1) : match.start()].isalpha() else ""
    said = _sum(match["figures"], scale, CURRENCIES[match["sign"]], single=single)
    return fill_groups(match, [(None, gap), *_parts(match, said)])


def _parts(match: Match, said: str) -> list[Part]:
    """Return the parts of a sum: its number, what follows it in the text, and what it is paid for."""
    number, per = words.number(match["figures"]), fill("{per: per per}", match)
    if not said.startswith(f"{number} "):
        return [("figures", said + per)]
    unit = next((group for group in ("scale", "joined") if match[group]), None)
    if unit is None and match.start("sign") > match.start("figures"):
        unit = "sign"
    return [("figures", number), (unit, said[len(number) :]), ("per", per)]


def _span(match: Match) -> str:
    """Read a range of sums. A scale after the second applies to the first as well."""
    low, low_scale, joint, again = match["low"], match["lows"], match["joint"].strip(), match["again"]
    figures, scale = match["figures"], match["scale"] or match["joined"]
    shared = scale and not low_scale
    if joint == "and" and not (shared and match.string.endswith(("between ", "Between "), 0, match.start())):
        return match[0]
    if (
        joint == "to"
        and not shared
        and (again or re.match(" [a-z]", match.string[match.end() : match.end() + 2]))
    ):
        return match[0]
    names, single = CURRENCIES[match["sign"]], _describes(match)
    has_cents = not scale and any(len(end.partition(".")[2]) == 2 for end in (low, figures))
    if has_cents or (again and not shared):
        said = _sum(low, low_scale, names, single=single)
    else:
        said = f"{words.number(low)} {MULTIPLIERS.get(low_scale, '')}".rstrip()
    high = _parts(match, _sum(figures, scale, names, single=single))
    first = (match.start("low"), match.end("lows") if low_scale else match.end("low"))
    return fill_groups(match, [(first, said), ("joint", f" {joint if joint == 'and' else 'to'} "), *high])


# Before number ranges: "$5-10" is money at both ends, "$5 to 10 people" is not.
SPANS: Final = (
    Rule(
        rf"(?<![\d.,-]){_SIGN}\s?(?P<low>{NUMBER})(?:\s?(?P<lows>{any_of(MULTIPLIERS)})\b)?"
        rf"(?P<joint>\s?[-–—]\s?| to | and )(?P<again>(?P=sign)\s?)?"
        rf"(?P<figures>{NUMBER}){_SCALE}{_PER}(?![\w%]|[.,-]\d)",
        _span,
    ),
)

RULES: Final = (
    Rule(rf"{_SIGN}\s?(?P<figures>{NUMBER}){_SCALE}{_PER}", _money),
    Rule(
        rf"{START}(?P<figures>{NUMBER})\s?(?P<sign>[€£¥₹])(?!\w)(?P<scale>)(?P<joined>)(?P<per>)",
        _money,
    ),
    Rule(rf"{START}({NUMBER})\s?({any_of('currency_codes')})\b", "{1:number} {2:currency_codes}"),
    Rule(rf"\b({any_of('currency_codes')})\s?({NUMBER})\b", "{2:number} {1:currency_codes}"),
    Rule(rf"{START}({NUMBER})\s?¢", lambda m: f"{words.number(m[1])} {'cent' if is_one(m[1]) else 'cents'}"),
)
