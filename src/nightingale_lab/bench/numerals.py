"""The ways English reads a numeral aloud, each as one run of letters ("1984" -> "nineteeneightyfour", …).

A recognizer may write what it heard as digits or as words; both are right. Word error rate therefore
compares numerals by their readings, which never hold the optional "and" of "one hundred and five". Nothing
here decides how *we* speak a number: that is the text front end's work.
"""

from __future__ import annotations

import re

ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen"),
    *("fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SCALES = ((10**9, "billion"), (10**6, "million"), (10**3, "thousand"))
ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
CURRENCIES = {"$": ("dollar", "cent"), "£": ("pound", "penny"), "€": ("euro", "cent")}

TIME = re.compile(r"(\d{1,2}):(\d\d)")
MONEY = re.compile(r"([$£€])(\d+)(?:\.(\d\d))?")
DECIMAL = re.compile(r"(\d*)\.(\d+)")
ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")
DECADE = re.compile(r"(\d*)(\d0)'?s")
FRACTION = re.compile(r"(\d+)/(\d+)")


def cardinal(number: int) -> list[str]:
    """Words of a whole number up to the billions, without "and"."""
    for scale, name in SCALES:
        if number >= scale:
            rest = cardinal(number % scale) if number % scale else []
            return [*cardinal(number // scale), name, *rest]
    if number >= 100:
        rest = cardinal(number % 100) if number % 100 else []
        return [ONES[number // 100], "hundred", *rest]
    if number >= 20:
        return [TENS[number // 10], *([ONES[number % 10]] if number % 10 else [])]
    return [ONES[number]]


def ordinal(number: int) -> list[str]:
    *head, last = cardinal(number)
    if last.endswith("y"):
        return [*head, last[:-1] + "ieth"]
    return [*head, ORDINALS.get(last, last + "th")]


def whole_readings(digits: str) -> list[list[str]]:
    """Readings of a run of digits, the plainest first."""
    number = int(digits)
    spelled = [ONES[int(digit)] for digit in digits]
    if len(digits) > 12:
        return [spelled]
    plain = cardinal(number)
    readings = [plain, spelled, ["oh" if word == "zero" else word for word in spelled]]
    if plain[0] == "one" and len(plain) > 1:
        readings.append(["a", *plain[1:]])
    if len(digits) == 4 and digits[0] != "0":
        high, low = int(digits[:2]), int(digits[2:])
        tail = ["hundred"] if low == 0 else cardinal(low) if low >= 10 else ["oh", ONES[low]]
        readings.append(cardinal(high) + tail)
        if low:
            readings.append([*cardinal(high), "hundred", *cardinal(low)])
    if len(digits) == 3 and digits[1] != "0":
        readings.append([ONES[int(digits[0])], *cardinal(int(digits[1:]))])
    if 1 <= number <= 31:
        readings.append(ordinal(number))  # "March 3" is spoken "March third"
    return readings


def time_readings(hour: int, minute: int) -> list[list[str]]:
    h, after = cardinal(hour), cardinal(hour % 12 + 1)
    if minute == 0:
        return [h, [*h, "oclock"], [*h, "hundred"]]
    m = cardinal(minute) if minute >= 10 else ["oh", ONES[minute]]
    readings = [h + m, [*cardinal(minute), "past", *h], [*cardinal(60 - minute), "to", *after]]
    if minute in {15, 30}:
        readings.append([{15: "quarter", 30: "half"}[minute], "past", *h])
    if minute == 45:
        readings.append(["quarter", "to", *after])
    return readings


def money_readings(symbol: str, whole: int, part: int) -> list[list[str]]:
    unit, small = CURRENCIES[symbol]
    small_many = "pence" if small == "penny" else small + "s"
    main = [*cardinal(whole), unit if whole == 1 else unit + "s"]
    if not part:
        return [main]
    rest = [*cardinal(part), small if part == 1 else small_many]
    if whole == 0:
        return [rest]
    return [main + rest, [*main, "and", *rest], cardinal(whole) + cardinal(part), main + cardinal(part)]


def fraction_readings(top: int, bottom: int) -> list[list[str]]:
    name = {2: "half", 4: "quarter"}.get(bottom) or "".join(ordinal(bottom))
    if top == 1:
        return [["one", name], ["a", name], [name]]
    return [[*cardinal(top), name + "s"], [*cardinal(top), "over", *cardinal(bottom)]]


def readings(token: str) -> list[list[str]]:
    """Every reading of a token that holds digits; none if it is not a numeral we know."""
    if token.isdecimal():
        return whole_readings(token)
    if match := TIME.fullmatch(token):
        return time_readings(int(match[1]), int(match[2]))
    if match := MONEY.fullmatch(token):
        return money_readings(match[1], int(match[2]), int(match[3] or 0))
    if match := DECIMAL.fullmatch(token):
        head = cardinal(int(match[1] or 0))
        digits = [ONES[int(digit)] for digit in match[2]]
        spoken = [[*head, "point", *digits], [*head, "point", *cardinal(int(match[2]))]]
        return spoken if int(match[1] or 0) else [*spoken, ["point", *digits]]
    if match := ORDINAL.fullmatch(token):
        return [ordinal(int(match[1]))]
    if match := DECADE.fullmatch(token):
        head = cardinal(int(match[1])) if match[1] else []
        last = "hundreds" if match[2] == "00" else TENS[int(match[2][0])].removesuffix("y") + "ies"
        return [[*head, "tens" if match[2] == "10" else last]]
    if match := FRACTION.fullmatch(token):
        return fraction_readings(int(match[1]), int(match[2])) if int(match[2]) else []
    return []
