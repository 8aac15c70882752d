"""Rules for percentages and units of measurement."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.rule import Rule, any_of, listed, rule

UNITS: Final = {
    # Written form: singular and plural.
    "km": ("kilometer", "kilometers"), "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"), "m": ("meter", "meters"), "nm": ("nanometer", "nanometers"),
    "um": ("micrometer", "micrometers"), "mi": ("mile", "miles"), "ft": ("foot", "feet"),
    "yd": ("yard", "yards"), "yds": ("yard", "yards"), "kg": ("kilogram", "kilograms"),
    "g": ("gram", "grams"), "mg": ("milligram", "milligrams"), "ug": ("microgram", "micrograms"),
    "lb": ("pound", "pounds"), "lbs": ("pound", "pounds"), "oz": ("ounce", "ounces"),
    "L": ("liter", "liters"), "l": ("liter", "liters"), "ml": ("milliliter", "milliliters"),
    "mL": ("milliliter", "milliliters"), "cl": ("centiliter", "centiliters"),
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"), "mph": ("mile per hour", "miles per hour"),
    "m/s": ("meter per second", "meters per second"), "mpg": ("mile per gallon", "miles per gallon"),
    "rpm": ("R P M", "R P M"), "fps": ("frame per second", "frames per second"),
    "bpm": ("beat per minute", "beats per minute"), "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"), "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"), "W": ("watt", "watts"), "kW": ("kilowatt", "kilowatts"),
    "MW": ("megawatt", "megawatts"), "GW": ("gigawatt", "gigawatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"), "V": ("volt", "volts"), "kV": ("kilovolt", "kilovolts"),
    "mV": ("millivolt", "millivolts"), "mA": ("milliamp", "milliamps"),
    "mAh": ("milliamp hour", "milliamp hours"), "KB": ("kilobyte", "kilobytes"),
    "kB": ("kilobyte", "kilobytes"), "MB": ("megabyte", "megabytes"), "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"), "PB": ("petabyte", "petabytes"), "MiB": ("mebibyte", "mebibytes"),
    "GiB": ("gibibyte", "gibibytes"), "kbps": ("kilobit per second", "kilobits per second"),
    "Mbps": ("megabit per second", "megabits per second"),
    "Gbps": ("gigabit per second", "gigabits per second"),
    "MB/s": ("megabyte per second", "megabytes per second"),
    "GB/s": ("gigabyte per second", "gigabytes per second"), "dB": ("decibel", "decibels"),
    "px": ("pixel", "pixels"), "ms": ("millisecond", "milliseconds"),
    "us": ("microsecond", "microseconds"), "ns": ("nanosecond", "nanoseconds"), "s": ("second", "seconds"),
    "sec": ("second", "seconds"), "secs": ("second", "seconds"), "min": ("minute", "minutes"),
    "mins": ("minute", "minutes"), "h": ("hour", "hours"), "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"), "yr": ("year", "years"), "yrs": ("year", "years"),
    "kcal": ("kilocalorie", "kilocalories"), "kJ": ("kilojoule", "kilojoules"), "psi": ("P S I", "P S I"),
    "kPa": ("kilopascal", "kilopascals"), "hPa": ("hectopascal", "hectopascals"),
    "sq ft": ("square foot", "square feet"), "sq mi": ("square mile", "square miles"),
    "ha": ("hectare", "hectares"), "tsp": ("teaspoon", "teaspoons"), "tbsp": ("tablespoon", "tablespoons"),
    "gal": ("gallon", "gallons"),
    "hp": ("horsepower", "horsepower"), "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"), "°": ("degree", "degrees"),
}  # fmt: skip
INCH: Final = ("inch", "inches")
"""Only written as "in." before a lower-case letter: "in" is nearly always the preposition."""
ONLY_ATTACHED: Final = frozenset({"l", "us", "ha"})
"""After a space these are more often a word or a letter than a unit."""
DOTTED: Final = listed("ft yd yds lb lbs oz mi sec secs min mins hr hrs yr yrs tsp tbsp gal")
"""Often written with a full stop, which does not end the sentence if a lower-case letter follows."""
PER: Final = {
    "h": "hour", "hr": "hour", "hour": "hour", "day": "day", "week": "week", "wk": "week", "mo": "month",
    "month": "month", "yr": "year", "year": "year", "kg": "kilogram", "lb": "pound", "min": "minute",
    "s": "second", "sec": "second", "person": "person", "night": "night", "unit": "unit", "mi": "mile",
    "km": "kilometer", "sq ft": "square foot", "gal": "gallon", "oz": "ounce", "g": "gram",
    "mL": "milliliter",
}  # fmt: skip

NUMBER: Final = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
START: Final = r"(?<![\w.,])"
"""Start of a separate number."""
PER_UNIT: Final = {**{unit: names[0] for unit, names in UNITS.items() if unit.isalpha()}, **PER}
_PER: Final = rf"(?:\s?/\s?(?P<per>{any_of(PER_UNIT)})\b(?: (?P<per_power>squared|cubed)\b)?)?"
POWERS: Final = {"squared": "square ", "cubed": "cubic ", None: ""}

MILLIONS: Final = {"m": "million", "mn": "million", "k": "thousand", "bn": "billion", "tn": "trillion"}
COUNTED: Final = listed(
    "people users views viewers visitors visits dollars euros pounds yen copies followers subscribers "
    "downloads customers voters votes workers employees jobs homes households children women men adults "
    "students pupils patients passengers tourists refugees deaths cases records rows tokens parameters "
    "words lines documents images barrels tons tonnes shares streams players members accounts vehicles "
    "cars readers listeners fans units items messages requests queries likes clicks installs hectares acres"
)
"""Things for which "5m" means five million and not five meters."""


def is_one(figures: str) -> bool:
    return figures.replace(",", "") == "1"


def _per(match: re.Match[str]) -> str:
    return f" per {POWERS[match['per_power']]}{PER_UNIT[match['per']]}" if match["per"] else ""


def _fraction_measure(match: re.Match[str]) -> str:
    """Replace only the unit; the fraction is normalized later. 1/2 tsp is one half teaspoon."""
    unit = match["unit"]
    if unit in ONLY_ATTACHED:
        return match[0]
    names = INCH if unit == "in." else UNITS[unit]
    return f"{match['fraction']} {names[bool(match['whole'])]}"


def _measure(match: re.Match[str]) -> str:
    figures, gap, unit = match["figures"], match["gap"], match["unit"]
    if gap and unit in ONLY_ATTACHED:
        return match[0]
    one, many = UNITS[unit]
    if gap == "-":
        return f"{words.number(figures)}-{one}"
    power = match["power"]
    if power and "/" in unit:
        one, many = f"{one} {power}", f"{many} {power}"
    else:
        one, many = f"{POWERS[power]}{one}", f"{POWERS[power]}{many}"
    return f"{words.number(figures)} {one if is_one(figures) else many}{_per(match)}"


RULES: Final[tuple[Rule, ...]] = (
    rule(
        rf"{START}({NUMBER})({any_of(MILLIONS)})"
        rf"(?= (?:(?:new|more|other|active|young|extra|daily|monthly) )?(?:{any_of(COUNTED)})\b)",
        lambda m: f"{words.number(m[1])} {MILLIONS[m[2]]}",
    ),
    rule(rf"{START}({NUMBER})\s?%", lambda m: f"{words.number(m[1])} percent"),
    rule(
        r"(?<![\w.])(\d)\s?(?:ft\.?|'|feet)\s?(\d{1,2})\s?(?:in\.?\b|\"|inches)",
        lambda m: f"{words.cardinal(int(m[1]))} foot {words.cardinal(int(m[2]))}",
    ),
    rule(r"(?<=\d) ?sq\. (?=ft\b|mi\b)", " sq "),
    rule(
        rf"(?<=\d)([ -]?(?:sq )?(?:{any_of(DOTTED)}))\.(?=[,;)]| [a-z]| \d{{1,2}} ?(?:in|oz|mins?|secs?)\b)",
        r"\1",
    ),
    rule(
        # Only reduced fractions: "8/16 GB" has two sizes.
        r"(?<![\w.,/])"
        r"(?P<fraction>(?P<whole>\d{1,3} )?(?:1/2|[12]/3|[13]/4|[1357]/8|(?:[13579]|1[135])/16))[ -]?"
        rf"(?P<unit>(?:{any_of(UNITS)})(?![\w°/])(?!'\w)|in\.(?=[,;)]| [a-z]))",
        _fraction_measure,
    ),
    rule(
        rf"(?<![\w.,/])({NUMBER})([ -]?)in\.(?=[,;)]| [a-z])",
        lambda m: f"{words.number(m[1])}{m[2]}{INCH[m[2] != '-' and not is_one(m[1])]}",
    ),
    rule(
        rf"{START}(?P<figures>{NUMBER})(?P<gap>[ -]?)(?P<unit>{any_of(UNITS)})(?![\w°])(?!'\w)"
        rf"(?: (?P<power>squared|cubed))?{_PER}",
        _measure,
    ),
)
