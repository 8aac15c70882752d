"""Readers: how the numbers and abbreviations of one language are written out as words."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final
from unicodedata import decimal

from nightingale.text.multilingual.number_rules import NumberRules, form_at
from nightingale.text.multilingual.patterns import Patterns, any_written

MAX_DIGITS: Final = 15
"""Longer numbers are read digit by digit."""
MAX_UNGROUPED_DIGITS: Final = 9
"""Longer numbers without marks between groups are read digit by digit: they are telephone or account numbers."""
JOINER: Final = "\u2060"
"""Stands where a prefix or suffix is joined to a number: the Turkish "2024'te", the Hebrew "ב-14"."""
NUMBER_START: Final = "\u2061"
"""Stands before words that replace digits, in languages that need a space before some of them."""
MANY: Final = 99
"""The index of a plural form that is the last one, whatever the language."""

_GROUP: Final = re.compile(r"\{(\w+)(?::(\w+))?\}")
_COUNT: Final = re.compile("#([a-z_]*)")
_FORMS: Final = re.compile(r"\{([^}]*)\}")
_WIDE: Final = str.maketrans({"％": "%", "￥": "¥", "℃": "°C", "−": "-", "～": "〜", "＄": "$"})

_KEPT: Final = {ord("0") + digit: 0xE000 + digit for digit in range(10)}
_WRITTEN: Final = {kept: digit for digit, kept in _KEPT.items()}
"""Digits that no rule may read are private characters until the end."""

Match = re.Match[str]
Replacement = Callable[[Match], str]


class Reader:
    """Writes out the text of one language."""

    def __init__(self, table: dict[str, Any]) -> None:
        """Use the table of a language."""
        self._table, self._patterns = table, Patterns(table)
        self._words: dict[str, str] = table["words"]
        self._rules = NumberRules(table["numbers"], table.get("endings", {}), table["plural"])
        self._months: list[str] = table["months"].split()
        self._gap: str = table.get("gap", " ")
        self._digit_gap: str = table.get("digit_gap", " ")
        self._spaced: str = table.get("space_before", "")
        self._measures = {**table.get("units", {}), **table.get("scales", {})}

    def read(self, text: str) -> str:
        """Return a text with its numbers and abbreviations in words; what no rule matches stays as it is."""
        if any(map(str.isdecimal, text)):
            text = "".join(str(decimal(c)) if c.isdecimal() else c for c in text).translate(_WIDE)
            for pattern, replacement in self._number_rules:
                text = pattern.sub(replacement, text)
            text = re.sub(f"{NUMBER_START}(?=[{self._spaced}])", " ", text) if self._spaced else text
            text = text.replace(JOINER, "").replace(NUMBER_START, "").translate(_WRITTEN)
        return self._abbreviations[0].sub(self._abbreviation, text)

    @cached_property
    def _number_rules(self) -> list[tuple[re.Pattern[str], Replacement]]:
        """The rules for text with digits, specific ones first."""
        patterns, table = self._patterns, self._table
        rules: list[tuple[str, Replacement]] = [
            *((rule["pattern"], self._template(rule["text"])) for rule in table.get("rule", ())),
            (patterns.telephone(), self._telephone),
            (rf"{patterns.start}\+(?=\d)", lambda _: self._words["plus"] + self._gap),
            *((pattern, self._template(table["date"])) for pattern in patterns.dates()),
            *([(patterns.written_date(), self._written_date)] if table.get("written_date", True) else []),
            *((pattern, self._time) for pattern in patterns.times()),
            (rf"{patterns.start}(\d{{1,3}}):(\d{{1,3}})(?!\d|:){patterns.end}", self._ratio),
            *((pattern, self._money) for pattern in patterns.money()),
            *((pattern, self._percentage) for pattern in patterns.percentages()),
            (patterns.units(), self._unit),
            (patterns.plain(), self._plain),
        ]
        return [(patterns.compile(pattern), self._marked(replacement)) for pattern, replacement in rules]

    def _marked(self, replacement: Replacement) -> Replacement:
        """Return a replacement that marks where its words begin, if the language needs spaces before some."""
        return (lambda match: NUMBER_START + replacement(match)) if self._spaced else replacement

    @cached_property
    def _abbreviations(self) -> tuple[re.Pattern[str], dict[str, str]]:
        """The pattern of all abbreviations, and what each means; its spaces do not matter."""
        meanings = {"".join(written.split()): said for written, said in self._table["abbreviations"].items()}
        forms: dict[str, str] = self._table["abbreviations"]
        # But not of single letters, which are initials of names.
        capitals = {
            written[0].upper() + written[1:]: said for written, said in forms.items() if len(written) > 2
        }
        return re.compile(rf"(?<!\w)(?:{any_written({**forms, **capitals})})(?!\w)"), meanings

    def _template(self, template: str) -> Replacement:
        """Return a function that fills a template with groups of a match: `{1}`, or `{day:ordinal}` in words.

        Besides rule sets there are "month", "digits" (one by one) and "kept" (left as it is).
        """

        def group(match: Match, name: str, rule_set: str | None) -> str:
            value = match[int(name)] if name.isdecimal() else match[name]
            if rule_set is None or not value:
                return value or ""
            if rule_set == "month":
                return self._months[int(value) - 1]
            if rule_set == "kept":
                return value.translate(_KEPT)
            return self._digits(value) if rule_set == "digits" else self._spell(int(value), rule_set)

        return lambda match: _GROUP.sub(lambda found: group(match, found[1], found[2]), template)

    def _spell(self, number: int, rule_set: str) -> str:
        return self._rules.spell(number, rule_set)

    def _digits(self, written: str) -> str:
        spelled = (self._spell(int(digit), "digit") for digit in written if digit.isdecimal())
        return self._digit_gap.join(spelled)

    def _amount(self, written: str, rule_set: str) -> str:
        """Return a number in words, as it is written in digits."""
        whole, fraction = self._split(written)
        if fraction:
            return self._decimal(whole, fraction)
        is_code = written.isdecimal() and len(written) > MAX_UNGROUPED_DIGITS
        if is_code or len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0"):
            return self._digits(whole)
        return self._spell(int(whole), rule_set)

    def _split(self, written: str) -> tuple[str, str]:
        """Return the digits before and after the decimal mark."""
        whole, *fraction = re.split(f"[{re.escape(self._table['decimal'])}]", written)
        return re.sub(r"\D", "", whole), "".join(fraction)

    def _decimal(self, whole: str, fraction: str) -> str:
        parts = self._table.get("fractions", ())
        if len(fraction) <= len(parts):
            first = self._count(self._words["whole"], whole)
            return f"{first} {self._count(parts[len(fraction) - 1], str(int(fraction)))}"
        as_number = self._table.get("decimals_as_number") and len(fraction) == 2 and fraction[0] != "0"
        after = self._spell(int(fraction), "cardinal") if as_number else self._digits(fraction)
        before = self._spell(int(whole), "cardinal") if len(whole) <= MAX_DIGITS else self._digits(whole)
        return self._gap.join((before, self._words["point"], after))

    def _form_index(self, written: str) -> int:
        whole, fraction = self._split(written)
        if not fraction or self._table["plural"] == "below_two":
            return self._rules.plural(_value(whole))
        return int(self._table.get("fraction_form", MANY))

    def _count(
        self, template: str, written: str, match: Match | None = None, index: int | None = None
    ) -> str:
        """Return a template such as "#feminine {minute|minutes}" for a number, or for the range of a match."""
        index = self._form_index(written) if index is None else index
        low = match["low"] if match else None
        minus = f"{self._words['minus']}{self._gap}" if match and match["minus"] else ""

        def number(found: Match) -> str:
            said = self._amount(written, found[1] or "cardinal")
            if low:
                said = self._amount(low, found[1] or "cardinal") + self._words["to"] + said
            return minus + said

        return _COUNT.sub(number, _FORMS.sub(lambda found: form_at(found[1], index), template))

    def _written_date(self, match: Match) -> str:
        short = dict(zip(self._table.get("short_months", "").split(), self._months, strict=False))
        month = short.get(match["month"].rstrip("."), match["month"])
        said = f"{self._spell(int(match['day']), 'day')}{match['gap']}{month}"
        return f"{said}{match['next']}{self._spell(int(match['year']), 'year')}" if match["year"] else said

    def _time(self, match: Match) -> str:
        template = self._table["time"]["full" if int(match["minute"]) else "whole"]
        return (match.groupdict().get("cue") or "") + self._template(template)(match)

    def _telephone(self, match: Match) -> str:
        plus = self._words["plus"] + self._gap if match[0][0] == "+" else ""
        return plus + self._digits(match[0])

    def _ratio(self, match: Match) -> str:
        """Read a score or a ratio: 3:1."""
        return self._words.get("ratio", " ").join(
            self._amount(figures, "cardinal") for figures in match.groups()
        )

    def _money(self, match: Match) -> str:
        key = _written_as(match["sign"], self._table["currencies"])
        unit, _, cents = (part.strip() for part in self._table["currencies"][key].partition(";"))
        written = match["number"]
        whole, fraction = self._split(written)
        if match["scale"]:
            scale = self._table["scales"][_written_as(match["scale"], self._table["scales"])]
            said = f"{self._count(scale, written, match)} {self._words.get('of', '')}".rstrip()
            many = self._rules.plural(1_000_000)
            return _COUNT.sub(said, _FORMS.sub(lambda found: form_at(found[1], many), unit))
        if not cents or len(fraction) != 2 or match["low"]:
            return self._count(unit, written, match) + self._full_stop(match)
        parts = [self._count(unit, whole, match)] if _value(whole) or not int(fraction) else []
        parts += [self._count(cents, str(int(fraction)))] if int(fraction) else []
        return self._words.get("and", " ").join(parts) + self._full_stop(match)

    def _percentage(self, match: Match) -> str:
        return self._count(self._words["percent"], match["number"], match)

    def _unit(self, match: Match) -> str:
        template = self._measures[_written_as(match["unit"], self._measures)]
        return self._count(template, match["number"], match) + self._full_stop(match)

    def _plain(self, match: Match) -> str:
        """Read a number by the rule set that the next word asks for, such as its gender."""
        low, number = match["low"], match["number"]
        if low and _value(self._split(low)[0]) >= _value(self._split(number)[0]):  # a score, no range
            return " ".join(self._amount(figures, "cardinal") for figures in (low, number))
        after = number + match.string[match.end() : match.end() + 40]
        sets = (one["set"] for one in self._table.get("before", ()) if re.match(one["word"], after))
        is_year = self._table.get("years_alone") and re.fullmatch("1[1-9]..", number)
        return self._count(f"#{next(sets, 'year' if is_year else '')}", number, match)

    def _abbreviation(self, match: Match) -> str:
        meanings, key = self._abbreviations[1], "".join(match[0].split())
        if key in meanings:
            said = meanings[key]
        else:
            said = meanings[key[0].lower() + key[1:]]
            said = said[0].upper() + said[1:]
        may_end = key in self._table.get("may_end_sentence", "").replace(" ", "").split("|")
        full_stop = self._full_stop(match, before_capital=may_end)
        return said + full_stop if may_end or not full_stop else match[0]  # "art." ends a sentence as a word

    def _full_stop(self, match: Match, *, before_capital: bool = True) -> str:
        """Return a full stop if that of an abbreviation also ends the sentence."""
        if not match[0].endswith("."):
            return ""
        before_capital = before_capital and not self._table.get("capital_nouns")
        rest = match.string[match.end() : match.end() + 8].lstrip("\"'”’)» \u00a0")
        return "." if not rest.strip() or (before_capital and rest[0].isupper()) else ""


def _value(digits: str) -> int:
    """Return the value of digits; of very many, one that is as large for all that matters here."""
    return int(digits) if len(digits) <= MAX_DIGITS else 10**MAX_DIGITS + int(digits[-MAX_DIGITS:])


def _written_as(found: str, table: dict[str, str]) -> str:
    """Return the key of a table that was found, perhaps with other spaces."""
    return (
        found
        if found in table
        else next(key for key in table if "".join(key.split()) == "".join(found.split()))
    )
