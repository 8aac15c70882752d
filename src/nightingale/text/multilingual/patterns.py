"""Patterns of numbers, dates, times and measures as a language writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

MACROS: Final = {
    "<DAY>": r"(?:[12]\d|3[01]|0?[1-9])(?!\d)",
    "<MON>": r"(?:1[0-2]|0?[1-9])(?!\d)",
    "<YEAR>": r"(?:1\d{3}|20\d{2})(?!\d)",
    "<HOUR>": r"(?:2[0-4]|1\d|0?\d)(?!\d)",
    "<MIN>": r"[0-5]\d(?!\d)",
}
"""Names that the patterns of a table may use, besides <NUM> (a number) and <MONTH> (the name of a month)."""
SPACES: Final = " \u00a0\u202f\u2009"
DASHES: Final = "-–—〜~"
LETTERS: Final = r"\w\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0963"
"""Letters, digits, and the marks that belong to letters, which `\\w` lacks."""


def any_written(choices: Iterable[str]) -> str:
    """Return a pattern for any of these, longest first; spaces after full stops are optional."""
    ordered = sorted(choices, key=lambda one: (-len(one), one))
    patterns = (re.escape(one).replace(r"\.\ ", r"\.\s?").replace(r"\ ", r"\s") for one in ordered)
    return "|".join(patterns) or "(?!)"


class Patterns:
    """The patterns of one language, from its table."""

    def __init__(self, table: dict[str, Any]) -> None:
        self._table = table
        inside = r"A-Za-z\d" if table.get("no_spaces") else LETTERS
        self.start = rf"(?<![{inside}])(?<!\d[.,:/])"
        self.end = rf"(?![{inside}]|[.,:/]\d)"
        # "2020 l'Italia" has no litres.
        word_end = rf"(?:(?<=[^{LETTERS}])|(?![{LETTERS}]|['’][{LETTERS}]))"
        self.after_unit = "(?![A-Za-z])" if table.get("no_spaces") else word_end

    @cached_property
    def number(self) -> str:
        """Grouped digits or plain ones, with decimals or without. Its quantifiers are bounded or do not backtrack."""
        marks = [f"[{SPACES}]" if mark == " " else re.escape(mark) for mark in self._table["group"]]
        groups = [rf"[1-9]\d{{0,2}}(?:{mark}\d{{3}}){{1,5}}(?!\d)" for mark in marks]
        if self._table.get("indian_groups"):
            groups.insert(0, r"[1-9]\d?(?:,\d\d){1,5},\d{3}(?!\d)")
        return rf"(?:{'|'.join(groups)}|\d++)(?:[{re.escape(self._table['decimal'])}]\d++)?"

    @property
    def amount(self) -> str:
        """A number with an optional minus sign, or a range of two."""
        return rf"(?P<minus>-)?(?:(?P<low>{self.number})\s?[{DASHES}]\s?)?(?P<number>{self.number})"

    @cached_property
    def month(self) -> str:
        """The name of a month, or its abbreviation with a full stop or before a year: "3 set" may be about tennis."""
        full, short = self._table["months"].split(), self._table.get("short_months", "").split()
        return rf"(?:(?:{any_written(full)})(?![{LETTERS}])|(?:{any_written(short)})(?:\.|(?= \d{{4}})))"

    def compile(self, pattern: str) -> re.Pattern[str]:
        """Return a pattern with its macros replaced."""
        for name, meaning in {**MACROS, "<NUM>": self.number, "<MONTH>": self.month}.items():
            pattern = pattern.replace(name, meaning)
        return re.compile(pattern)

    def dates(self) -> list[str]:
        """Return the patterns of dates in figures: the year first, or the day first."""
        end = r"(?![\d/-])" if self._table.get("no_spaces") else r"(?![\w/-]|\.\d)"
        year, month, day = r"(?P<year><YEAR>)", r"(?P<month><MON>)", r"(?P<day><DAY>)"
        return [
            rf"{self.start}{year}(?P<mark>[-/.]){month}(?P=mark){day}{end}",
            rf"{self.start}{day}(?P<mark>[-/.]){month}(?P=mark){year}{end}",
        ]

    def written_date(self) -> str:
        """Return the pattern of a date with the name of its month."""
        of = f"(?:{self._table['date_of']} )?" if "date_of" in self._table else ""
        return (
            rf"{self.start}(?P<day><DAY>){self._table.get('day_mark', '')}(?P<gap>\s{of})(?P<month><MONTH>)"
            rf"(?:(?P<next>,?\s{of})(?P<year><YEAR>)(?!\w|[.,]\d))?"
        )

    def times(self) -> list[str]:
        """Return the patterns of times: with a colon, and with a point where a word shows that it is a time."""
        hour, minute, end = "(?P<hour><HOUR>)", "(?P<minute><MIN>)", r"(?!\d|:\d)"
        after, cue = self._table["time"].get("after"), self._table["time"].get("cue")
        found = [rf"{self.start}{hour}:{minute}{end}" + (f"(?:{after})?" if after else "")]
        if after:
            found.append(rf"{self.start}{hour}\.{minute}{end}(?:{after})")
        if cue:
            found.append(rf"(?<!\w)(?P<cue>(?:{cue})\s){hour}\.{minute}{end}")
        return found

    def telephone(self) -> str:
        """Return the pattern of a telephone number: groups of digits after a plus, or with a zero at the beginning."""
        national = r"0(?=[\d /-]{8})\d{1,5}(?:[ /-]\d{3,8}){1,4}"
        return rf"{self.start}(?:\+\d{{1,3}}(?:[ /()-]{{1,2}}\d{{2,9}}){{2,5}}|{national}){self.end}"

    def money(self) -> list[str]:
        """Return the patterns of sums: the sign of the currency first, or last."""
        scales = any_written(self._table.get("scales", {}))
        scale = rf"(?:\s?(?P<scale>{scales}){self.after_unit})?"
        of = self._table["words"].get("of")
        scale += rf"(?:(?<=\w)\s{of}(?=\s))?" if of else ""
        sign = rf"(?P<sign>{any_written(self._table['currencies'])})"
        return [
            rf"{self.start}{sign}\s?{self.amount}(?:{scale}){self.end}",
            rf"{self.start}{self.amount}{scale}\s?{sign}{self.after_unit}",
        ]

    def percentages(self) -> list[str]:
        """Return the patterns of percentages."""
        first = [rf"(?<!\w)%\s?{self.amount}{self.end}"] if self._table.get("percent_first") else []
        return [rf"{self.start}{self.amount}\s?%", *first]

    def units(self) -> str:
        """Return the pattern of a number before a unit."""
        units = any_written({**self._table.get("units", {}), **self._table.get("scales", {})})
        return rf"{self.start}{self.amount}\s?(?P<unit>{units}){self.after_unit}"

    def plain(self) -> str:
        """Return the pattern of any other number."""
        return rf"{self.start}{self.amount}{self.end}"
