"""The shape of a reading rule: a pattern, and what is said in its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property

Say = Callable[[re.Match[str]], str] | str
"""What is said for a match; a string is a template in the manner of `re.sub`."""


class Rule:
    """Every match of a pattern is replaced by `say`.

    The pattern is compiled when it is first tried: two in three are about figures, and a process that says
    "Hello." need not wait for them.
    """

    def __init__(self, written: str | re.Pattern[str], say: Say, flags: int = 0) -> None:
        self._written, self._say, self._flags = written, say, flags

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(self._written, self._flags)

    def read(self, text: str) -> str:
        return self._pattern.sub(self._say, text)


rule = Rule
"""As tables of rules write it."""


def read_all(rules: Iterable[Rule], text: str) -> str:
    for each in rules:
        text = each.read(text)
    return text


def any_of(words: Iterable[str]) -> str:
    """A pattern for any of the words, the longest first so that no word hides behind its own beginning."""
    return "|".join(re.escape(word) for word in sorted(words, key=lambda word: (-len(word), word)))


def listed(words: str) -> tuple[str, ...]:
    """A table of words, written as a line of text."""
    return tuple(words.split())
