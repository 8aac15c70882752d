"""Rules for dates, clock times, decades and years."""

from __future__ import annotations

import re
from typing import Final

from nightingale.text.english import words
from nightingale.text.english.openings import sentence_ends
from nightingale.text.english.rule import Rule, any_of, listed, rule

MONTHS: Final = listed(
    "January February March April May June July August September October November December"
)
MONTH_OF: Final = {
    **{month: month for month in MONTHS},
    **{month[:3]: month for month in MONTHS},
    "Sept": "September",
}
DAY_OF: Final = {
    "Mon": "Monday", "Tue": "Tuesday", "Tues": "Tuesday", "Wed": "Wednesday", "Thu": "Thursday",
    "Thur": "Thursday", "Thurs": "Thursday", "Fri": "Friday", "Sat": "Saturday", "Sun": "Sunday",
}  # fmt: skip
YEAR_CUES: Final = listed(
    "in In since Since by By from From until Until till before Before after After of year years around "
    "circa early late mid during During between and to summer winter spring fall autumn class vintage "
    "BC AD copyright"
)
NOT_COUNTED: Final = listed(
    "was is has its this as does says thus plus versus always perhaps yes his hers us"
)
"""Words in -s that may follow a year without being counted."""

# Only an abbreviated month has a full stop of its own, and not at the end of the text.
_MONTH: Final = (
    rf"\b(?P<month>{any_of(MONTH_OF)})\b"
    r"(?:(?:(?<=Sept)|(?<=\b(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Oct|Nov|Dec)))\.(?!$))?"
)
_DAY: Final = r"(?P<day>[12]\d|3[01]|0?[1-9])"
_LAST: Final = r"\s?[-–—]\s?(?P<last>[12]\d|3[01]|0?[1-9])"
_TH: Final = r"(?:st|nd|rd|th)?"
_YEAR: Final = r"(?P<year>1\d{3}|20\d{2})"
_WEEKDAY: Final = r"(?:Sun|Mon|Tues|Wednes|Thurs|Fri|Satur)day\b"
# The sentence continues after an hour: with a day, a time zone, or a lower-case letter.
SENTENCE_CONTINUES: Final = (
    rf"(?=\s+[a-z0-9]|\s+[A-Z]{{2,4}}\b|\s+{_WEEKDAY}|\s+(?:{any_of(MONTHS)}) [a-z0-9]"
    r"|\s+(?:Eastern|Central|Mountain|Pacific|Greenwich)(?:[.,;)]|$| [A-Z]?[a-z]{0,7} ?[Tt]ime\b)|[^\s\"'])"
)
_HALF: Final = rf"(?P<half>[AaPp])\.?\s?[Mm]\b(?:\.{SENTENCE_CONTINUES})?"


def _day(figures: str) -> str:
    return words.ordinal(int(figures))


def _with_year(said: str, year: str | None) -> str:
    return f"{said}, {words.year(year)}" if year else said


def _month_day(match: re.Match[str]) -> str:
    return _with_year(f"{MONTH_OF[match['month']]} {_day(match['day'])}", match["year"])


def _month_days(match: re.Match[str]) -> str:
    said = f"{MONTH_OF[match['month']]} {_day(match['day'])} to {_day(match['last'])}"
    return _with_year(said, match["year"])


def _days_month(match: re.Match[str]) -> str:
    said = f"the {_day(match['day'])} to the {_day(match['last'])} of {MONTH_OF[match['month']]}"
    return _with_year(said, match["year"])


def _day_month(match: re.Match[str]) -> str:
    article = "" if match["the"] else "the "
    return _with_year(
        f"{match['the'] or article}{_day(match['day'])} of {MONTH_OF[match['month']]}", match["year"]
    )


def _slashed(match: re.Match[str]) -> str:
    """Read the month first, as in America, unless only the other order is a date."""
    month, day = int(match[1]), int(match[3])
    if month > 12:
        month, day = day, month
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match[0]
    year = match[4] if len(match[4]) == 4 else f"20{match[4]}"
    return f"{MONTHS[month - 1]} {words.ordinal(day)}, {words.year(year)}"


def _month_slash_day(match: re.Match[str]) -> str:
    month, day = int(match[2]), int(match[3])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match[0]
    return f"{match[1]} {MONTHS[month - 1]} {words.ordinal(day)}"


def _iso(match: re.Match[str]) -> str:
    return f"{MONTHS[int(match[3]) - 1]} {_day(match[4])}, {words.year(match[1])}"


def _timestamp(match: re.Match[str]) -> str:
    """Leave the time in digits for the clock rules; whole minutes need no seconds."""
    second = "" if match[6] in (None, "00") else f":{match[6]}"
    return f"{_iso(match)} at {match[2]}:{match[5]}{second}{_zone(match[7])}"


def _zone(offset: str | None) -> str:
    if not offset:
        return ""
    if offset == "Z":
        return " UTC"
    hours, minutes = int(offset[1:3]), int(offset[-2:])
    said = f"{words.cardinal(hours)}{f' {words.cardinal(minutes)}' if minutes else ''}"
    return f" UTC {'plus' if offset[0] == '+' else 'minus'} {said}"


def _clock(match: re.Match[str]) -> str:
    hour, minute, half = int(match["hour"]), int(match["minute"] or 0), match["half"]
    if hour > 24 or minute > 59:
        return match[0]
    said = words.cardinal(hour)
    if minute:
        said += f" {'oh ' if minute < 10 else ''}{words.cardinal(minute)}"
    elif not half:
        said += " o'clock" if 1 <= hour <= 12 else " hundred"
    if match["second"] and int(match["second"]):
        said += f" and {words.cardinal(int(match['second']))} seconds"
    return f"{said} {half.upper()} M" if half else said


def _decade(match: re.Match[str]) -> str:
    century, tens = match[1], match[2]
    if tens == "0":
        head = "two thousand" if century == "20" else f"{words.cardinal(int(century))} hundred"
        return f"{head}s"
    tail = words.plural(words.cardinal(int(tens) * 10))
    return f"{words.cardinal(int(century))} {tail}"


def _plain_year(match: re.Match[str]) -> str:
    return words.year(match["year"])


_NOT_IN_NUMBER: Final = r"(?<![\w.,$£€/:-])"
_NUMBER_ENDS: Final = r"(?![\w%°]|[.,:/]\d)"


def _short(match: re.Match[str]) -> str:
    """Expand a month or a day; the full stop of its abbreviation may also end the sentence."""
    said = (MONTH_OF | DAY_OF)[match[1]]
    return said + ("." if sentence_ends(match.string, match.end()) else "")


SPANS: Final[tuple[Rule, ...]] = (
    rule(
        rf"\b({any_of(DAY_OF)})\.?\s?[-–]\s?({any_of(DAY_OF)})\b(?:\.(?= [a-z0-9]))?",
        lambda m: f"{DAY_OF[m[1]]} to {DAY_OF[m[2]]}",
    ),
    rule(
        rf"\b({any_of(MONTH_OF)})\.?\s?[-–—]\s?(?=(?:{any_of(MONTH_OF)})\b)",
        lambda m: f"{MONTH_OF[m[1]]} to ",
    ),
)

# Without a number next to them. Jan and Del Mar are names, and a sun is not a day: those need a word before.
SHORT: Final[tuple[Rule, ...]] = (
    rule(r"\b(Feb|Apr|Jul|Aug|Sept?|Oct|Nov|Dec|Tues?|Wed|Thurs?|Fri)\.(?!\w)", _short),
    rule(
        r"(?:(?<=\b[Ii]n )|(?<=\b[Oo]n )|(?<=\b(?:last|next|this|late) )|(?<=\b(?:since|early|every) ))"
        r"(Jan|Mar|Jun|Mon|Thu|Sat|Sun)\.(?!\w)",
        _short,
    ),
)

DATES: Final[tuple[Rule, ...]] = (
    rule(
        # The hour is the second group, so that dates have the same groups with and without it.
        rf"{_NOT_IN_NUMBER}(1\d{{3}}|20\d{{2}})-(?=\d\d-\d\dT([01]\d|2[0-4]):)"
        r"(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T\d\d:([0-5]\d)(?::([0-5]\d)(?:\.\d{1,9})?)?"
        r"(Z|[+-](?:0\d|1[0-4]):?[0-5]\d)?(?![\w:])",
        _timestamp,
    ),
    rule(
        rf"{_NOT_IN_NUMBER}(1\d{{3}}|20\d{{2}})([-/])(0[1-9]|1[0-2])\2(0[1-9]|[12]\d|3[01])(?![\w/-])", _iso
    ),
    rule(
        rf"{_NOT_IN_NUMBER}(\d{{1,2}})([/.])(\d{{1,2}})\2(\d{{4}}|\d{{2}}(?<=/\d\d))(?![\w/]|\.\d)", _slashed
    ),
    rule(r"\b([Oo]n|[Bb]y|[Uu]ntil|[Ss]ince) (\d{1,2})/(\d{1,2})(?![\d/])", _month_slash_day),
    rule(
        rf"\b({any_of(DAY_OF)})\b\.?(?=,? (?:{any_of(MONTH_OF)})\b|,? \d)",
        lambda m: DAY_OF[m[1]],
    ),
    rule(
        rf"\b(?P<month>{any_of(MONTH_OF)})(?P<rest>\.? \d{{1,2}}{_TH}(?:,? {_YEAR})?)\s?[-–—]\s?"
        rf"(?=(?:{any_of(MONTH_OF)})\.? \d)",
        lambda m: f"{m['month']}{m['rest']} to ",
    ),
    rule(
        rf"{_NOT_IN_NUMBER}{_DAY}{_TH}{_LAST}{_TH} {_MONTH}(?:,? {_YEAR})?{_NUMBER_ENDS}",
        _days_month,
    ),
    rule(
        rf"{_MONTH} {_DAY}{_TH}{_LAST}{_TH}(?![\w%°-]|[.:/]\d)(?:,? {_YEAR}(?![\w%°]|[.:/]\d))?",
        _month_days,
    ),
    rule(
        rf"(?P<the>\b[Tt]he )?(?<![\d.,:/$-]){_DAY}(?:st|nd|rd|th)?(?: of)? {_MONTH}"
        rf"(?:,? {_YEAR})?{_NUMBER_ENDS}",
        _day_month,
    ),
    rule(rf"{_MONTH} {_DAY}(?:st|nd|rd|th)?(?![\w%°]|[.:/]\d)(?:,? {_YEAR}(?![\w%°]|[.:/]\d))?", _month_day),
    rule(rf"{_MONTH},? {_YEAR}{_NUMBER_ENDS}", lambda m: f"{MONTH_OF[m['month']]} {words.year(m['year'])}"),
)

TIMES: Final[tuple[Rule, ...]] = (
    # "9-5pm", "9:30–11 am": the dash of a range, while both ends still look like times.
    rule(rf"(?<=\d)\s?[-–—]\s?(?=\d{{1,2}}(?::\d\d)?\s?{_HALF})", " to "),
    rule(r"(?:(?<=[AaPp][Mm])|(?<=[AaPp]\.[Mm]\.))\s?[-–—]\s?(?=\d)", " to "),
    rule(r"(?<=:\d\d)\s?[-–—]\s?(?=\d{1,2}:\d\d)", " to "),
    rule(
        rf"(?<![\d:.,])(?P<hour>\d{{1,2}}):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?![\d:]|\.\d)"
        rf"(?:\s?{_HALF})?",
        _clock,
    ),
    rule(rf"(?<![\d:.,$£€])(?P<hour>1[0-2]|0?[1-9])(?P<minute>)(?P<second>)\s?{_HALF}", _clock),
    rule(r"(?<![\d:.])(\d{1,3}):(\d{1,3})(?![\d:]|\.\d)", r"\1 to \2"),
)

YEARS: Final[tuple[Rule, ...]] = (
    rule(r"(?<![\w.,$£€])'?(1[1-9]|20)(\d)0'?s\b", _decade),
    rule(r"(?<![\w.,$£€])'?([2-9])0'?s\b", lambda m: words.plural(words.cardinal(int(m[1]) * 10))),
    rule(r"(?<![\w'])'(\d)(\d)(?![\w']|[.,]\d)", lambda m: _short_year(m[1], m[2])),
    # A range of years whose second year is shortened: 1939–45.
    rule(
        r"(?<![\w.,$£€-])(1[1-9]\d\d|20\d\d)\s?[-–—/]\s?(\d\d)(?![\w%°]|[.,:]\d)",
        lambda m: f"{words.year(m[1])} to {_short_year(m[2][0], m[2][1])}",
    ),
    rule(
        r"(?<![\w.,$£€-])(?P<year>1\d{3}|20\d{2}) ?[-–—] ?(?P<end>1\d{3}|20\d{2})(?![\w%°]|[.,:]\d)",
        lambda m: f"{words.year(m['year'])} to {words.year(m['end'])}",
    ),
    rule(
        rf"\b(?P<cue>{any_of(YEAR_CUES)})(?P<gap> |-)(?P<year>1\d{{3}}|20\d{{2}}){_NUMBER_ENDS}"
        rf"(?! (?!(?:{any_of(NOT_COUNTED)})\b)[a-z]{{2,}}s\b)",
        lambda m: f"{m['cue']}{m['gap']}{_plain_year(m)}",
    ),
    rule(r"(?:(?<=\()|(?<=[a-z.], ))(?P<year>1\d{3}|20\d{2})(?=\))", _plain_year),
    rule(
        rf"{_NOT_IN_NUMBER}(?P<year>19\d{{2}}|20\d{{2}}){_NUMBER_ENDS}"
        rf"(?! (?!(?:{any_of(NOT_COUNTED)})\b)[a-z]{{2,}}s\b| people\b| men\b| women\b| children\b)",
        _plain_year,
    ),
    rule(
        r"\b(?P<year>\d{1,4}) (?=(?:BCE?|AD|CE)\b)",
        lambda m: f"{words.year(m['year']) if len(m['year']) > 2 else words.cardinal(int(m['year']))} ",
    ),
)


def _short_year(tens: str, ones: str) -> str:
    if tens == "0":
        return f"oh {words.digits(ones)}"
    return words.cardinal(int(tens + ones))
