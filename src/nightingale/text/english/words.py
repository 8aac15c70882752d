"""Numbers as American English words: no "and" inside an integer, hyphens from twenty-one on."""

from __future__ import annotations

from typing import Final

from nightingale.text.english.rule import listed

SMALL: Final = listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
TENS: Final = ("", "", *listed("twenty thirty forty fifty sixty seventy eighty ninety"))
SCALES: Final = ("", "thousand", "million", "billion", "trillion")
MAX_CARDINAL_DIGITS: Final = 15
"""Longer numbers are read digit by digit: quintillions are hard to follow."""

ORDINAL_OF: Final = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}


def cardinal(number: int) -> str:
    """Return the cardinal: 1234 is "one thousand two hundred thirty-four"."""
    if number == 0:
        return SMALL[0]
    parts: list[str] = []
    for scale in SCALES:
        number, group = divmod(number, 1000)
        if group:
            parts.append(f"{_below_thousand(group)} {scale}".strip())
    return " ".join(reversed(parts))


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    said = [f"{SMALL[hundreds]} hundred"] if hundreds else []
    if rest:
        said.append(_below_hundred(rest))
    return " ".join(said)


def _below_hundred(number: int) -> str:
    if number < 20:
        return SMALL[number]
    tens, ones = divmod(number, 10)
    return TENS[tens] + (f"-{SMALL[ones]}" if ones else "")


def ordinal(number: int) -> str:
    """Return the ordinal: 21 is "twenty-first"."""
    said = cardinal(number)
    cut = max(said.rfind(" "), said.rfind("-")) + 1
    head, last = said[:cut], said[cut:]
    if last.endswith("y"):
        return f"{head}{last[:-1]}ieth"
    return head + ORDINAL_OF.get(last, last + "th")


def digits(figures: str) -> str:
    """Read digit by digit: "007" is "zero zero seven". Other characters are skipped."""
    return " ".join(SMALL[int(figure)] for figure in figures if figure in "0123456789")


def whole(figures: str) -> str:
    """Read a run of digits as a number, or digit by digit if it has a leading zero or is too long."""
    if len(figures) > MAX_CARDINAL_DIGITS or (len(figures) > 1 and figures.startswith("0")):
        return digits(figures)
    return cardinal(int(figures))


def number(figures: str) -> str:
    """Read a number with optional thousands separators and decimals: "1,234.50" or ".5"."""
    before, point, after = figures.replace(",", "").partition(".")
    said = whole(before) if before else ""
    return f"{said} point {digits(after)}".strip() if point else said


def year(figures: str) -> str:
    """Read digits in pairs, as in years and room numbers: 1905 is "nineteen oh five"."""
    value = int(figures)
    high, low = divmod(value, 100)
    if not 100 <= value <= 9999 or (value < 3000 and high % 10 == 0 and low < 10):
        return cardinal(value)
    if low == 0:
        return f"{cardinal(high)} hundred"
    return f"{cardinal(high)} {'oh ' if low < 10 else ''}{cardinal(low)}"


def plural(word: str) -> str:
    """Return the plural of a number word: twenties, hundreds, sixes."""
    if word.endswith("y"):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith("x") else f"{word}s"
