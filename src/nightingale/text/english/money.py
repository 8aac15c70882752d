"""Rules for sums of money: single, ranges, and as attributes (a hundred dollar bill)."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.measures import MILLIONS, NUMBER, PER, START, is_one
from nightingale.text.english.rule import Rule, any_of, listed, rule

CURRENCIES: Final = {
    # Singular and plural of the unit and of its hundredth.
    "$": ("dollar", "dollars", "cent", "cents"),
    "US$": ("U S dollar", "U S dollars", "cent", "cents"),
    "C$": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "CA$": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "A$": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "AU$": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "NZ$": ("New Zealand dollar", "New Zealand dollars", "cent", "cents"),
    "HK$": ("Hong Kong dollar", "Hong Kong dollars", "cent", "cents"),
    "S$": ("Singapore dollar", "Singapore dollars", "cent", "cents"),
    "NT$": ("Taiwan dollar", "Taiwan dollars", "cent", "cents"),
    "R$": ("real", "reais", "centavo", "centavos"),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "₽": ("ruble", "rubles", "kopeck", "kopecks"),
    "₩": ("won", "won", "jeon", "jeon"),
    "₿": ("bitcoin", "bitcoins", "cent", "cents"),
}
CURRENCY_CODES: Final = {
    "USD": "U S dollars", "EUR": "euros", "GBP": "pounds", "JPY": "yen", "CHF": "Swiss francs",
    "CAD": "Canadian dollars", "AUD": "Australian dollars", "INR": "rupees", "CNY": "yuan",
    "HKD": "Hong Kong dollars", "NZD": "New Zealand dollars", "SGD": "Singapore dollars",
}  # fmt: skip
SCALES: Final = listed("thousand million billion trillion")
MULTIPLIERS: Final = {
    **MILLIONS, "K": "thousand", "M": "million", "B": "billion", "b": "billion", "T": "trillion",
    **{scale: scale for scale in (*SCALES, "hundred")},
}  # fmt: skip

THINGS: Final = listed(
    "bill note coin check cheque ticket fine prize deal budget contract grant loan fund gift card voucher "
    "coupon question lawsuit settlement project plan package bonus fee reward bounty discount rebate "
    "donation bailout investment scholarship house mansion price jackpot"
)
"""Nouns that a sum may describe without an article before it: two $20 bills."""
NOT_THINGS: Final = listed(
    "and or but nor to in on at for from of off out over under up down with by per as than a an the each "
    "every apiece is was are were has had will would can could should more less now then today yesterday "
    "tomorrow ago back he she it they we you who that which if when while because so until since"
)
"""Words that may follow "a $100" and are not described by it."""

BETWEEN: Final = ("between ", "Between ")

_SIGN: Final = rf"(?P<sign>(?<![A-Za-z])(?:{any_of(CURRENCIES)})|(?<=[A-Za-z])[$£€¥₹₽₩₿])"
_SCALE: Final = rf"(?:\s?(?P<scale>{any_of(MULTIPLIERS)})\b|-(?P<joined>{any_of(SCALES)})\b)?"
_PER: Final = rf"(?:\s?/\s?(?P<per>{any_of(PER)}|[a-z]{{3,20}})\b)?"
_THING: Final = rf" (?!(?:{any_of(NOT_THINGS)})\b)[a-z]{{2,20}}\b"
_LISTED_THING: Final = rf" (?:{any_of(THINGS)})s?\b"

_WORD: Final = re.compile(r" [a-z]")
_DESCRIBES: Final = re.compile(rf"-(?:an?|per)-[a-z]|{_LISTED_THING}")
_ANYTHING: Final = re.compile(_THING)
_DESCRIBES_AFTER: Final = (
    # What precedes the sum, and what follows a sum that is an attribute.
    (re.compile(r"\b(?:[Aa]n?|[Aa]nother|[Ee]very|[Ee]ach) $"), _ANYTHING),
    (
        re.compile(r"\b(?:[Tt]he|[Tt]his|[Tt]hat|[Hh]is|[Hh]er|[Ii]ts|[Tt]heir|[Oo]ur|[Mm]y|[Yy]our|'s) $"),
        re.compile(_THING + _LISTED_THING),
    ),
)


def _describes(match: re.Match[str]) -> bool:
    """Return whether the sum is an attribute, read in the singular: a five dollar bill."""
    text, end = match.string, match.end()
    if match["per"]:
        return False
    if _DESCRIBES.match(text, end) or (match["joined"] and _ANYTHING.match(text, end)):
        return True
    before = text[max(0, match.start() - 10) : match.start()]
    return any(led.search(before) and thing.match(text, end) for led, thing in _DESCRIBES_AFTER)


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


def _per(match: re.Match[str]) -> str:
    return f" per {PER.get(match['per'], match['per'])}" if match["per"] else ""


def _money(match: re.Match[str]) -> str:
    scale, single = match["scale"] or match["joined"], _describes(match)
    # After letters that are no known country, the sum is a word of its own.
    gap = " " if match.string[max(0, match.start() - 1) : match.start()].isalpha() else ""
    return gap + _sum(match["figures"], scale, CURRENCIES[match["sign"]], single=single) + _per(match)


def _span(match: re.Match[str]) -> str:
    """Read a range of sums. A scale after the second applies to the first as well."""
    low, low_scale, joint, again = match["low"], match["lows"], match["joint"].strip(), match["again"]
    figures, scale = match["figures"], match["scale"] or match["joined"]
    shared = scale and not low_scale
    if joint == "and" and not (shared and match.string.endswith(BETWEEN, 0, match.start())):
        return match[0]
    if joint == "to" and not shared and (again or _WORD.match(match.string, match.end())):
        return match[0]
    names, single = CURRENCIES[match["sign"]], _describes(match)
    has_cents = not scale and any(len(end.partition(".")[2]) == 2 for end in (low, figures))
    if has_cents or (again and not shared):
        said = _sum(low, low_scale, names, single=single)
    else:
        said = f"{words.number(low)} {MULTIPLIERS.get(low_scale, '')}".rstrip()
    high = _sum(figures, scale, names, single=single) + _per(match)
    return f"{said} {joint if joint == 'and' else 'to'} {high}"


# Before number ranges: "$5-10" is money at both ends, "$5 to 10 people" is not.
SPANS: Final[tuple[Rule, ...]] = (
    rule(
        rf"(?<![\d.,-]){_SIGN}\s?(?P<low>{NUMBER})(?:\s?(?P<lows>{any_of(MULTIPLIERS)})\b)?"
        rf"(?P<joint>\s?[-–—]\s?| to | and )(?P<again>(?P=sign)\s?)?"
        rf"(?P<figures>{NUMBER}){_SCALE}{_PER}(?![\w%]|[.,-]\d)",
        _span,
    ),
)

RULES: Final[tuple[Rule, ...]] = (
    rule(rf"{_SIGN}\s?(?P<figures>{NUMBER}){_SCALE}{_PER}", _money),
    rule(
        rf"{START}(?P<figures>{NUMBER})\s?(?P<sign>[€£¥₹])(?!\w)(?P<scale>)(?P<joined>)(?P<per>)",
        _money,
    ),
    rule(
        rf"{START}(?P<figures>{NUMBER})\s?(?P<code>{any_of(CURRENCY_CODES)})\b",
        lambda m: f"{words.number(m['figures'])} {CURRENCY_CODES[m['code']]}",
    ),
    rule(
        rf"\b(?P<code>{any_of(CURRENCY_CODES)})\s?(?P<figures>{NUMBER})\b",
        lambda m: f"{words.number(m['figures'])} {CURRENCY_CODES[m['code']]}",
    ),
    rule(rf"{START}({NUMBER})\s?¢", lambda m: f"{words.number(m[1])} {'cent' if is_one(m[1]) else 'cents'}"),
)
