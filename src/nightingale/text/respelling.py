"""Lexicons: how the words of an author are respelled before a text is normalized."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from nightingale.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LexiconEntry:
    """A word and its respelling."""

    written: str
    said: str
    match_case: bool
    """False: capitals do not matter."""
    part_of_word: bool = False
    """True: also inside longer words."""


@dataclass(frozen=True, slots=True)
class Respelling:
    """A place of a text that a lexicon changes."""

    at: int
    written: str
    said: str


class Lexicon:
    """Words and their respellings. Longer words come first; a respelling is not respelled again."""

    def __init__(self, entries: Iterable[LexiconEntry] = ()) -> None:
        """Use these entries; of two for the same word, the last one counts."""
        by_word = {(entry.written, entry.match_case): entry for entry in entries}
        self.entries = tuple(sorted(by_word.values(), key=lambda entry: (-len(entry.written), entry.written)))

    def merged(self, other: Lexicon) -> Lexicon:
        """Return a lexicon with the entries of both; those of `other` count where both have a word."""
        words = {entry.written.lower() for entry in other.entries}
        kept = [entry for entry in self.entries if entry.written.lower() not in words]
        return Lexicon([*kept, *other.entries])

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(f"({_pattern_of(entry)})" for entry in self.entries))

    def changes(self, text: str) -> list[Respelling]:
        """Return what changes in a text, in order."""
        if not self.entries:
            return []
        return [
            Respelling(found.start(), found[0], self.entries[(found.lastindex or 1) - 1].said)
            for found in self._pattern.finditer(text)
        ]


def respell(text: str, changes: Iterable[Respelling]) -> str:
    """Return a text with these changes."""
    parts, end = [], 0
    for change in changes:
        parts += [text[end : change.at], change.said]
        end = change.at + len(change.written)
    return "".join([*parts, text[end:]])


class SourceMap:
    """Find positions of a respelled text in the author's text."""

    def __init__(self, changes: Iterable[Respelling]) -> None:
        self._changes, self._starts, self._shifts = list(changes), list[int](), [0]
        for change in self._changes:
            self._starts.append(change.at + self._shifts[-1])
            self._shifts.append(self._shifts[-1] + len(change.said) - len(change.written))

    def span(self, at: int) -> tuple[int, int]:
        """Return the author's character at a position, or all of a word that was respelled: its start and end."""
        number = bisect_right(self._starts, at)
        if number and at < self._starts[number - 1] + len(self._changes[number - 1].said):
            change = self._changes[number - 1]
            return change.at, change.at + len(change.written)
        return at - self._shifts[number], at - self._shifts[number] + 1


def lexicon_of(words: Mapping[str, object], entries: object = ()) -> Lexicon:
    """Return a lexicon of words and respellings, and of entries with rules: {"written": …, "said": …, "case": …}.

    A word in lower case is found with any capitals, another one only as it is written, unless `case` is "any"
    or "exact". With `part`, a word is also found inside longer words.

    Raises:
        ConfigError: An entry is not one.
    """
    found = [_entry({"written": written, "said": said}) for written, said in words.items()]
    if not isinstance(entries, list | tuple):
        raise _invalid(entries)
    return Lexicon([*found, *map(_entry, entries)])


def _entry(fields: object) -> LexiconEntry:
    if not isinstance(fields, Mapping) or fields.keys() - {"written", "said", "case", "part"}:
        raise _invalid(fields)
    written, said, part = fields.get("written"), fields.get("said"), fields.get("part", False)
    if (
        not (isinstance(written, str) and isinstance(said, str) and isinstance(part, bool))
        or not written.strip()
    ):
        raise _invalid(fields)
    case = fields.get("case", "any" if written == written.lower() else "exact")
    if case not in ("any", "exact"):
        raise _invalid(fields)
    return LexiconEntry(
        written=written.strip(), said=said.strip(), match_case=case == "exact", part_of_word=part
    )


def _invalid(entry: object) -> ConfigError:
    return ConfigError(
        "an entry of the lexicon is invalid",
        got=repr(entry)[:100],
        allowed='word = "respelling" below [words], or [[entry]] with written, said, case ("any" or "exact") and part',
        fix="Check it with `nightingale lexicon check FILE`.",
        param="lexicon",
    )


def _pattern_of(entry: LexiconEntry) -> str:
    word = re.escape(entry.written)
    if not entry.match_case:
        word = f"(?i:{word})"
    return word if entry.part_of_word else rf"(?<!\w){word}(?!\w)"
