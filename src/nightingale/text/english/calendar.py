"""Rules for dates, clock times, decades and years."""

from __future__ import annotations

from typing import Final

from nightingale.text.english import words
from nightingale.text.english.openings import sentence_ends
from nightingale.text.english.rule import Rule, any_of, fill
from nightingale.text.normalized_text import Match
from nightingale.text.tables import word_list, word_map

MONTHS: Final = word_list("months")[:12]
_MONTHS: Final = any_of("months")
_WEEKDAYS: Final = any_of("weekdays")
# Only an abbreviated month has a full stop of its own, and not at the end of the text.
_MONTH: Final = (
    rf"\b(?P<month>{_MONTHS})\b"
    r"(?:(?:(?<=Sept)|(?<=\b(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Oct|Nov|Dec)))\.(?!$))?"
)
_TH: Final = r"(?:st|nd|rd|th)?"
_DAY: Final = rf"(?P<day>[12]\d|3[01]|0?[1-9]){_TH}"
_LAST: Final = rf"\s?[-–—]\s?(?P<last>[12]\d|3[01]|0?[1-9]){_TH}"
_ANY_YEAR: Final = r"1\d{3}|20\d{2}"
_YEAR: Final = rf"(?P<year>{_ANY_YEAR})"
# The sentence continues after an hour: with a day, a time zone, or a lower-case letter.
SENTENCE_CONTINUES: Final = (
    r"(?=\s+[a-z0-9]|\s+[A-Z]{2,4}\b|\s+(?:Sun|Mon|Tues|Wednes|Thurs|Fri|Satur)day\b"
    rf"|\s+(?:{any_of(MONTHS)}) [a-z0-9]"
    r"|\s+(?:Eastern|Central|Mountain|Pacific|Greenwich)(?:[.,;)]|$| [A-Z]?[a-z]{0,7} ?[Tt]ime\b)|[^\s\"'])"
)
_HALF: Final = rf"(?P<half>[AaPp])\.?\s?[Mm]\b(?:\.{SENTENCE_CONTINUES})?"
_NOT_IN_NUMBER: Final = r"(?<![\w.,$£€/:-])"
_NUMBER_ENDS: Final = r"(?![\w%°×]|[.,:/]\d)"
_DATE_ENDS: Final = rf"(?![\w%°]|[.:/]\d)(?:,? {_YEAR}(?![\w%°]|[.:/]\d))?"
_COUNTED: Final = rf" (?!(?:{any_of('not_counted_after_year')})\b)[a-z]{{2,}}s\b"


def _day_month(match: Match) -> str:
    return fill("{the}{day:ordinal} of {month:months}{year:, year}", match, the=match["the"] or "the ")


def _slashed(match: Match) -> str:
    """Read the month first, as in America, unless only the other order is a date."""
    month, day = int(match["month"]), int(match["day"])
    year = match.groupdict().get("year")
    if month > 12 and year:
        month, day = day, month
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match[0]
    said = f"{MONTHS[month - 1]} {words.ordinal(day)}"
    if not year:
        return fill("{1}{month}", match, month=said)
    return f"{said}, {words.year(year if len(year) == 4 else f'20{year}')}"


def _timestamp(match: Match) -> str:
    """Leave the time in digits for the clock rules; whole minutes need no seconds."""
    second = "" if match["second"] in (None, "00") else f":{match['second']}"
    return f"{_slashed(match)} at {match['hour']}:{match['minute']}{second}{_zone(match['zone'])}"


def _zone(offset: str | None) -> str:
    if not offset or offset == "Z":
        return " UTC" if offset else ""
    minutes = f" {words.cardinal(offset[-2:])}" if int(offset[-2:]) else ""
    return f" UTC {'plus' if offset[0] == '+' else 'minus'} {words.cardinal(offset[1:3])}{minutes}"


def _clock(match: Match) -> str:
    hour, minute, half = int(match["hour"]), int(match["minute"] or 0), match["half"]
    if hour > 24 or minute > 59:
        return match[0]
    said = words.cardinal(hour)
    if minute:
        said += f" {words.two_digits(minute)}"
    elif not half:
        said += " o'clock" if 1 <= hour <= 12 else " hundred"
    if match["second"] and int(match["second"]):
        said += f" and {words.cardinal(match['second'])} seconds"
    return fill("{hour}{half}", match, hour=said, half=f" {half.upper()} M" if half else "")


def _decade(match: Match) -> str:
    century, tens = match[1], match[2]
    if tens != "0":
        return f"{words.cardinal(century)} {words.decade(tens)}"
    return "two thousands" if century == "20" else f"{words.cardinal(century)} hundreds"


def _short(match: Match) -> str:
    """Expand a month or a day; the full stop of its abbreviation may also end the sentence."""
    said: str = (word_map("months") | word_map("weekdays"))[match[1]]
    return said + ("." if sentence_ends(match.string, match.end()) else "")


SPANS: Final = (
    Rule(
        rf"\b({_WEEKDAYS})\.?\s?[-–]\s?({_WEEKDAYS})\b(?:\.(?= [a-z0-9]))?",
        "{1:weekdays} to {2:weekdays}",
        needs="-–",
    ),
    Rule(rf"\b({_MONTHS})\.?\s?[-–—]\s?(?=(?:{_MONTHS})\b)", "{1:months} to ", needs="-–—"),
)

# Without a number next to them. Jan and Del Mar are names, and a sun is not a day: those need a word before.
SHORT: Final = (
    Rule(r"\b(Feb|Apr|Jul|Aug|Sept?|Oct|Nov|Dec|Mon|Tues?|Wed|Thurs?|Thu|Fri)\.(?!\w)", _short),
    Rule(r"(?<=[a-z] )(Sat)\.(?!\w)", _short),
    Rule(
        r"\b(Mon|Tues?|Wed|Thurs?|Fri|Sat|Sun)(?= (?:at (?:\d|noon|midnight)|morning|afternoon|evening|night)\b)",
        "{1:weekdays}",
    ),
    Rule(
        r"\b(?=[JMTS])(?:(?<=\b[Ii]n )|(?<=\b[Oo]n )|(?<=\b(?:last|next|this|late) )|(?<=\b(?:since|early|every) ))"
        r"(Jan|Mar|Jun|Mon|Thu|Sat|Sun)\.(?!\w)",
        _short,
    ),
)

DATES: Final = (
    Rule(
        rf"{_NOT_IN_NUMBER}{_YEAR}-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])"
        r"T(?P<hour>[01]\d|2[0-4]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d)(?:\.\d{1,9})?)?"
        r"(?P<zone>Z|[+-](?:0\d|1[0-4]):?[0-5]\d)?(?![\w:])",
        _timestamp,
    ),
    Rule(
        rf"{_NOT_IN_NUMBER}{_YEAR}(?P<mark>[-/])(?P<month>0[1-9]|1[0-2])(?P=mark)"
        r"(?P<day>0[1-9]|[12]\d|3[01])(?![\w/-])",
        _slashed,
    ),
    Rule(
        rf"{_NOT_IN_NUMBER}(?P<month>\d{{1,2}})(?P<mark>[/.])(?P<day>\d{{1,2}})(?P=mark)"
        r"(?P<year>\d{4}|\d{2}(?<=/\d\d))(?![\w/]|\.\d)",
        _slashed,
    ),
    Rule(r"\b((?:[Oo]n|[Bb]y|[Uu]ntil|[Ss]ince) )(?P<month>\d{1,2})/(?P<day>\d{1,2})(?![\d/])", _slashed),
    Rule(rf"\b({_WEEKDAYS})\b\.?(?=,? (?:{_MONTHS})\b|,? \d)", "{1:weekdays}"),
    Rule(
        rf"\b((?:{_MONTHS})\.? \d{{1,2}}{_TH}(?:,? {_YEAR})?)\s?[-–—]\s?(?=(?:{_MONTHS})\.? \d)",
        "{1} to ",
    ),
    Rule(
        rf"{_NOT_IN_NUMBER}{_DAY}{_LAST} {_MONTH}(?:,? {_YEAR})?{_NUMBER_ENDS}",
        "the {day:ordinal} to the {last:ordinal} of {month:months}{year:, year}",
    ),
    Rule(
        rf"{_MONTH} {_DAY}{_LAST}(?!-){_DATE_ENDS}",
        "{month:months} {day:ordinal} to {last:ordinal}{year:, year}",
    ),
    Rule(
        rf"(?P<the>\b[Tt]he )?(?<![\d.,:/$-]){_DAY}(?: of)? {_MONTH}(?:,? {_YEAR})?{_NUMBER_ENDS}",
        _day_month,
    ),
    Rule(rf"{_MONTH} {_DAY}{_DATE_ENDS}", "{month:months} {day:ordinal}{year:, year}"),
    Rule(rf"{_MONTH},? {_YEAR}{_NUMBER_ENDS}", "{month:months} {year:year}"),
)

TIMES: Final = (
    # "9-5pm", "9:30–11 am": the dash of a range, while both ends still look like times.
    Rule(rf"(?<=\d)\s?[-–—]\s?(?=\d{{1,2}}(?::\d\d)?\s?{_HALF})", " to "),
    Rule(r"(?:(?<=[AaPp][Mm])|(?<=[AaPp]\.[Mm]\.))\s?[-–—]\s?(?=\d)", " to "),
    Rule(r"(?<=:\d\d)\s?[-–—]\s?(?=\d{1,2}:\d\d)", " to "),
    Rule(
        rf"(?<![\d:.,])(?P<hour>\d{{1,2}}):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?![\d:]|\.\d)"
        rf"(?:\s?{_HALF})?",
        _clock,
    ),
    Rule(rf"(?<![\d:.,$£€])(?P<hour>1[0-2]|0?[1-9])(?P<minute>)(?P<second>)\s?{_HALF}", _clock),
    Rule(r"(?<![\d:.])(\d{1,3}):(\d{1,3})(?![\d:]|\.\d)", "{1} to {2}"),
)

YEARS: Final = (
    Rule(r"(?<![\w.,$£€])'?(1[1-9]|20)(\d)0'?s\b", _decade),
    Rule(r"(?<![\w.,$£€])'?([2-9])0'?s\b", "{1:decade}"),
    Rule(r"(?<![\w'])'(\d\d)(?![\w']|[.,]\d)", "{1:two_digits}"),
    # A range of years whose second year is shortened: 1939–45.
    Rule(
        r"(?<![\w.,$£€-])(1[1-9]\d\d|20\d\d)\s?[-–—/]\s?(\d\d)(?![\w%°]|[.,:]\d)",
        "{1:year} to {2:two_digits}",
    ),
    Rule(
        rf"(?<![\w.,$£€-])({_ANY_YEAR}) ?[-–—] ?({_ANY_YEAR})(?![\w%°]|[.,:]\d)",
        "{1:year} to {2:year}",
    ),
    Rule(rf"\b((?:{any_of('year_cues')})[ -]){_YEAR}{_NUMBER_ENDS}(?!{_COUNTED})", "{1}{year:year}"),
    Rule(rf"(?:(?<=\()|(?<=[a-z.], )){_YEAR}(?=\))", "{year:year}"),
    Rule(
        rf"{_NOT_IN_NUMBER}(19\d{{2}}|20\d{{2}}){_NUMBER_ENDS}"
        rf"(?!{_COUNTED}| people\b| men\b| women\b| children\b)",
        "{1:year}",
    ),
    Rule(r"\b(\d{1,4}) (?=(?:BCE?|AD|CE)\b)", "{1:year} "),
)
