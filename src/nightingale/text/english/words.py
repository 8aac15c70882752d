"""Numbers as American English words: no "and" inside an integer, hyphens from twenty-one on."""

from __future__ import annotations

from typing import Final

from nightingale.text.tables import word_list, word_map

SMALL: Final = word_list("numbers_below_twenty")
TENS: Final = word_list("tens")
ROMAN: Final = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
SCALES: Final = ("", "thousand", "million", "billion", "trillion")
MAX_CARDINAL_DIGITS: Final = 15
"""Longer numbers are read digit by digit: quintillions are hard to follow."""
MAX_UNGROUPED_DIGITS: Final = 9
"""Longer numbers without separators are telephone or account numbers, unless they end with six zeros."""


def value_of(number: int | str) -> int:
    """Return the value of digits or of a Roman numeral."""
    if isinstance(number, str) and number.isalpha():
        values = [ROMAN[letter] for letter in number]
        return sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))
    return int(number)


def cardinal(number: int | str) -> str:
    """Return the cardinal: 1234 is "one thousand two hundred thirty-four"."""
    rest, parts = value_of(number), []
    for scale in SCALES:
        rest, group = divmod(rest, 1000)
        if group:
            parts.append(f"{_below_thousand(group)} {scale}".strip())
    return " ".join(reversed(parts)) or SMALL[0]


def _below_thousand(number: int) -> str:
    if number < 20:
        return SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens - 2] + (f"-{SMALL[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{SMALL[hundreds]} hundred" + (f" {_below_thousand(rest)}" if rest else "")


def ordinal(number: int | str) -> str:
    """Return the ordinal: 21 is "twenty-first"."""
    said = cardinal(number)
    cut = max(said.rfind(" "), said.rfind("-")) + 1
    head, last = said[:cut], said[cut:]
    if last.endswith("y"):
        return f"{head}{last[:-1]}ieth"
    return f"{head}{word_map('irregular_ordinals').get(last, last + 'th')}"


def digits(figures: str) -> str:
    """Read digit by digit: "007" is "zero zero seven". Other characters are skipped."""
    return " ".join(SMALL[int(figure)] for figure in figures if figure in "0123456789")


def whole(figures: str) -> str:
    """Read a run of digits as a number, or digit by digit if it has a leading zero or is too long."""
    is_code = len(figures) > MAX_UNGROUPED_DIGITS and not figures.endswith("000000")
    return digits(figures) if is_code else _grouped(figures)


def _grouped(figures: str) -> str:
    if len(figures) > MAX_CARDINAL_DIGITS or (len(figures) > 1 and figures.startswith("0")):
        return digits(figures)
    return cardinal(figures)


def number(figures: str) -> str:
    """Read a number with optional thousands separators and decimals: "1,234.50" or ".5"."""
    before, point, after = figures.replace(",", "").partition(".")
    read = _grouped if "," in figures else whole
    said = read(before) if before else ""
    return f"{said} point {digits(after)}".strip() if point else said


def year(figures: str) -> str:
    """Read digits in pairs, as in years and room numbers: 1905 is "nineteen oh five"."""
    value = int(figures)
    high, low = divmod(value, 100)
    if not 100 <= value <= 9999 or (value < 3000 and high % 10 == 0 and low < 10):
        return cardinal(value)
    return f"{cardinal(high)} {two_digits(low) if low else 'hundred'}"


def two_digits(figures: int | str) -> str:
    """Read two digits after an hour or a century: 05 is "oh five"."""
    return f"{'oh ' if int(figures) < 10 else ''}{cardinal(figures)}"


def paired(figures: str) -> str:
    """Read three and four digits as in house numbers: 221 is "two twenty-one"."""
    return year(figures) if len(figures) in (3, 4) and not figures.startswith("0") else whole(figures)


def decade(tens: str) -> str:
    """Return the name of a decade: 9 is "nineties", 1 is "tens"."""
    said = cardinal(int(tens) * 10)
    return f"{said[:-1]}ies" if said.endswith("y") else f"{said}s"
