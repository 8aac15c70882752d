"""The shape of a reading rule: a pattern, and what is said in its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Say = Callable[[re.Match[str]], str] | str
"""What is said for a match; a string is a template in the manner of `re.sub`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Every match of `pattern` is replaced by `say`."""

    pattern: re.Pattern[str]
    say: Say

    def read(self, text: str) -> str:
        return self.pattern.sub(self.say, text)


def rule(pattern: str, say: Say, flags: int = 0) -> Rule:
    return Rule(re.compile(pattern, flags), say)


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
