"""Readers: how the numbers and abbreviations of one language are written out as words."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Final
from unicodedata import decimal

from nightingale.text.multilingual.number_rules import NumberRules, form_at
from nightingale.text.multilingual.patterns import Patterns, any_written
from nightingale.text.normalized_text import Filled, Match, NormalizedText, Part, fill_groups

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
_NUMBER: Final = re.compile(r"\d+")
_OTHER_DIGIT: Final = re.compile(r"[^\D0-9]")
_WIDE: Final = {"％": "%", "￥": "¥", "℃": "°C", "−": "-", "～": "〜", "＄": "$"}

_KEPT: Final = {ord("0") + digit: 0xE000 + digit for digit in range(10)}
_WRITTEN: Final = {chr(kept): chr(digit) for digit, kept in _KEPT.items()} | {JOINER: "", NUMBER_START: ""}
"""Digits that no rule may read are private characters until the end."""

Reading = Callable[[Match], list[Part]]


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

    def read(self, text: str) -> NormalizedText:
        """Return a text with its numbers and abbreviations in words; what no rule matches stays as it is."""
        normalized = NormalizedText.of(text)
        if any(map(str.isdecimal, text)):
            normalized = normalized.sub(_OTHER_DIGIT, lambda digit: str(decimal(digit[0])))
            normalized = normalized.replace_characters(_WIDE)
            for pattern, reading in self._number_rules:
                normalized = normalized.sub(pattern, partial(self._filled, reading))
            if self._spaced:
                normalized = normalized.sub(re.compile(f"{NUMBER_START}(?=[{self._spaced}])"), " ")
            normalized = normalized.replace_characters(_WRITTEN)
        return normalized.sub(self._abbreviations[0], self._abbreviation)

    def _filled(self, reading: Reading, match: Match) -> Filled:
        """Return what a match is read as, with a mark at its start if the language needs spaces before some words."""
        return fill_groups(match, [(None, NUMBER_START if self._spaced else ""), *reading(match)])

    @cached_property
    def _number_rules(self) -> list[tuple[re.Pattern[str], Reading]]:
        """The rules for text with digits, specific ones first."""
        patterns, table = self._patterns, self._table
        rules: list[tuple[str, Reading]] = [
            *((rule["pattern"], self._template(rule["text"])) for rule in table.get("rule", ())),
            (patterns.telephone(), self._telephone),
            (rf"{patterns.start}\+(?=\d)", lambda _: [(0, self._words["plus"] + self._gap)]),
            *((pattern, self._template(table["date"])) for pattern in patterns.dates()),
            *([(patterns.written_date(), self._written_date)] if table.get("written_date", True) else []),
            *((pattern, self._time) for pattern in patterns.times()),
            (rf"{patterns.start}(\d{{1,3}}):(\d{{1,3}})(?!\d|:){patterns.end}", self._ratio),
            *((pattern, self._money) for pattern in patterns.money()),
            *((pattern, self._percentage) for pattern in patterns.percentages()),
            (patterns.units(), self._unit),
            (patterns.plain(), self._plain),
        ]
        return [(patterns.compile(pattern), reading) for pattern, reading in rules]

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

    def _template(self, template: str) -> Reading:
        """Return a function that fills a template with groups of a match: `{1}`, or `{day:ordinal}` in words.

        Besides rule sets there are "month", "digits" (one by one) and "kept" (left as it is).
        """

        def group(value: str, rule_set: str | None) -> str:
            if rule_set is None or not value:
                return value
            if rule_set == "month":
                return self._months[int(value) - 1]
            if rule_set == "kept":
                return value.translate(_KEPT)
            return self._digits(value) if rule_set == "digits" else self._spell(int(value), rule_set)

        def parts(match: Match) -> list[Part]:
            found, at = list[Part](), 0
            for one in _GROUP.finditer(template):
                name = int(one[1]) if one[1].isdecimal() else one[1]
                found += [(None, template[at : one.start()]), (name, group(match[name] or "", one[2]))]
                at = one.end()
            return [*found, (None, template[at:])]

        return parts

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

    def _count(self, template: str, written: str) -> str:
        """Return a template such as "#feminine {minute|minutes}" for a number."""
        form = self._form(template, self._form_index(written))
        return _COUNT.sub(lambda found: self._amount(written, found[1] or "cardinal"), form)

    def _form(self, template: str, index: int) -> str:
        return _FORMS.sub(lambda found: form_at(found[1], index), template)

    def _counted(self, template: str, match: Match, group: str | None = None) -> list[Part]:
        """Return a template for the number or range of a match; the words around the number stand for a group."""
        form = self._form(template, self._form_index(match["number"]))
        return _around(form, lambda rule_set: self._numbers(match, rule_set), group)

    def _numbers(self, match: Match, rule_set: str) -> list[Part]:
        minus = f"{self._words['minus']}{self._gap}" if match["minus"] else ""
        low = self._amount(match["low"], rule_set) if match["low"] else ""
        to = self._words["to"] if low else ""
        said = self._amount(match["number"], rule_set)
        return [("minus", minus), ("low", low), (None, to), ("number", said)]

    def _written_date(self, match: Match) -> list[Part]:
        short = dict(zip(self._table.get("short_months", "").split(), self._months, strict=False))
        month = short.get(match["month"].rstrip("."), str(match["month"]))
        parts: list[Part] = [
            ("day", self._spell(int(match["day"]), "day")),
            ("gap", match["gap"]),
            ("month", month),
        ]
        if match["year"]:
            parts += [("next", match["next"]), ("year", self._spell(int(match["year"]), "year"))]
        return parts

    def _time(self, match: Match) -> list[Part]:
        template = self._table["time"]["full" if int(match["minute"]) else "whole"]
        cue: list[Part] = [("cue", match["cue"])] if "cue" in match.groupdict() else []
        return [*cue, *self._template(template)(match)]

    def _telephone(self, match: Match) -> list[Part]:
        parts: list[Part] = [(None, self._words["plus"] + self._gap)] if match[0][0] == "+" else []
        for group in _NUMBER.finditer(match.string, *match.span()):
            parts += [(group.span(), self._digits(group[0])), (None, self._digit_gap)]
        return parts[:-1]

    def _ratio(self, match: Match) -> list[Part]:
        """Read a score or a ratio: 3:1."""
        one, other = (self._amount(figures, "cardinal") for figures in match.groups())
        return [(1, one), (None, self._words.get("ratio", " ")), (2, other)]

    def _money(self, match: Match) -> list[Part]:
        key = _written_as(match["sign"], self._table["currencies"])
        unit, _, cents = (part.strip() for part in self._table["currencies"][key].partition(";"))
        whole, fraction = self._split(match["number"])
        if match["scale"]:
            scale = self._table["scales"][_written_as(match["scale"], self._table["scales"])]
            of = self._words.get("of", "")
            number = [*self._counted(scale, match, "scale"), *([(None, f" {of}")] if of else [])]
            return _around(self._form(unit, self._rules.plural(1_000_000)), lambda _: number, "sign")
        if not cents or len(fraction) != 2 or match["low"]:
            return [*self._counted(unit, match, "sign"), (None, self._full_stop(match))]
        minus = f"{self._words['minus']}{self._gap}" if match["minus"] else ""
        parts = []
        if _value(whole) or not int(fraction):
            form = self._form(unit, self._form_index(whole))
            parts.append(_COUNT.sub(lambda found: minus + self._amount(whole, found[1] or "cardinal"), form))
        if int(fraction):
            parts.append(self._count(cents, str(int(fraction))))
        return [(0, self._words.get("and", " ").join(parts) + self._full_stop(match))]

    def _percentage(self, match: Match) -> list[Part]:
        return self._counted(self._words["percent"], match)

    def _unit(self, match: Match) -> list[Part]:
        template = self._measures[_written_as(match["unit"], self._measures)]
        return [*self._counted(template, match, "unit"), (None, self._full_stop(match))]

    def _plain(self, match: Match) -> list[Part]:
        """Read a number by the rule set that the next word asks for, such as its gender."""
        low, number = match["low"], match["number"]
        if low and _value(self._split(low)[0]) >= _value(self._split(number)[0]):  # a score, no range
            return [
                ("low", self._amount(low, "cardinal")),
                (None, " "),
                ("number", self._amount(number, "cardinal")),
            ]
        after = number + match.string[match.end() : match.end() + 40]
        sets = (one["set"] for one in self._table.get("before", ()) if re.match(one["word"], after))
        is_year = self._table.get("years_alone") and re.fullmatch("1[1-9]..", number)
        return self._counted(f"#{next(sets, 'year' if is_year else '')}", match)

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


def _around(form: str, number: Callable[[str], list[Part]], group: str | None) -> list[Part]:
    """Return the parts of a form with a number, such as "# Meter"; its words stand for a group."""
    found = _COUNT.search(form)
    if found is None:
        return [(None, form)]
    return [(group, form[: found.start()]), *number(found[1] or "cardinal"), (group, form[found.end() :])]


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
