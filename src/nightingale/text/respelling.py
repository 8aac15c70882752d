"""Lexicons: how the words of an author are respelled before a text is normalized.

Words are looked up in a table by their letters, so the cost of a text does not depend on the number of words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from nightingale.errors import ConfigError
from nightingale.text.normalized_text import Edit

MAX_WRITTEN_CHARS: Final = 100
"""The largest length of a word, or of several words, of a lexicon."""
MAX_SAID_CHARS: Final = 1000
"""The largest length of a respelling."""
_ALIKE: Final = str.maketrans("\u0130\u0131\u1fd3\u1fe3\ufb06", "ii\u0390\u03b0\ufb05")
"""Letters that are capitals of each other, although neither `casefold` nor `lower` makes them equal."""


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

    @property
    def edit(self) -> Edit:
        """The change of the text."""
        return self.at, self.at + len(self.written), self.said


class Lexicon:
    """Words and their respellings. Longer words come first; a respelling is not respelled again."""

    def __init__(self, entries: Iterable[LexiconEntry] = ()) -> None:
        """Use these entries; of two for the same word, the last one counts."""
        by_word = {(entry.written, entry.match_case): entry for entry in entries}
        self.entries = tuple(sorted(by_word.values(), key=lambda entry: (-len(entry.written), entry.written)))

    def merged(self, other: Lexicon) -> Lexicon:
        """Return a lexicon with the entries of both; those of `other` count where both have a word."""
        if not (self.entries and other.entries):
            return other if other.entries else self
        words = {entry.written.lower() for entry in other.entries}
        kept = [entry for entry in self.entries if entry.written.lower() not in words]
        return Lexicon([*kept, *other.entries])

    @cached_property
    def _words(self) -> dict[str, list[LexiconEntry]]:
        """Entries by their word without its capitals."""
        words: dict[str, list[LexiconEntry]] = {}
        for entry in self.entries:
            words.setdefault(_without_capitals(entry.written), []).append(entry)
        return words

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """The lengths of the words that begin with a letter, longest first."""
        lengths: dict[str, set[int]] = {}
        for word in self._words:
            lengths.setdefault(word[0], set()).add(len(word))
        return {letter: sorted(found, reverse=True) for letter, found in lengths.items()}

    def changes(self, text: str) -> list[Respelling]:
        """Return what changes in a text, in order."""
        if not self.entries:
            return []
        letters, found, at = _without_capitals(text), list[Respelling](), 0
        beginning = re.compile(f"[{re.escape(''.join(self._lengths))}]")
        while match := beginning.search(letters, at):
            at = match.start()
            entry = self._entry_at(text, letters, at)
            if entry is None:
                at += 1
                continue
            found.append(Respelling(at, text[at : at + len(entry.written)], entry.said))
            at += len(entry.written)
        return found

    def _entry_at(self, text: str, letters: str, at: int) -> LexiconEntry | None:
        """Return the longest entry whose word is at a position."""
        for length in self._lengths[letters[at]]:
            for entry in self._words.get(letters[at : at + length], ()):
                if _is_at(entry, text, at):
                    return entry
        return None


def _is_at(entry: LexiconEntry, text: str, at: int) -> bool:
    """Return whether capitals and the ends of an entry are as they must be, where its letters are."""
    end = at + len(entry.written)
    if entry.match_case and text[at:end] != entry.written:
        return False
    return entry.part_of_word or not (_is_word(text[max(0, at - 1) : at]) or _is_word(text[end : end + 1]))


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _without_capitals(text: str) -> str:
    """Return the text with one letter for all that differ only in their case; positions stay."""
    return text.lower() if text.isascii() else "".join(map(_without_capital, text))


@lru_cache(1024)
def _without_capital(character: str) -> str:
    alike = character.translate(_ALIKE)
    return next((one for one in (alike.casefold(), alike.lower()) if len(one) == 1), alike)


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
    for name, value, limit in (("word", written, MAX_WRITTEN_CHARS), ("respelling", said, MAX_SAID_CHARS)):
        if len(value.strip()) > limit:
            raise ConfigError(
                f"a {name} of the lexicon is too long",
                got=f"{len(value.strip())} characters, {value.strip()[:20]!r}…",
                allowed=f"at most {limit}",
                fix="Write an entry for each word.",
                param="lexicon",
            )
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
