"""The type of a normalization rule: a pattern and its replacement."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property

Replacement = Callable[[re.Match[str]], str] | str
"""The replacement of a match; a string is a template of `re.sub`."""


class Rule:
    """Replaces every match of a pattern.

    The pattern is compiled on first use: two thirds of the rules are about numbers, and text without digits
    does not need them.
    """

    def __init__(self, pattern: str | re.Pattern[str], replacement: Replacement, flags: int = 0) -> None:
        self._source, self._replacement, self._flags = pattern, replacement, flags

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(self._source, self._flags)

    def apply(self, text: str) -> str:
        return self._pattern.sub(self._replacement, text)


rule = Rule


def apply_all(rules: Iterable[Rule], text: str) -> str:
    for each in rules:
        text = each.apply(text)
    return text


def any_of(words: Iterable[str]) -> str:
    """Return a pattern for any of the words, longest first, so that no prefix matches instead."""
    return "|".join(re.escape(word) for word in sorted(words, key=lambda word: (-len(word), word)))


def listed(words: str) -> tuple[str, ...]:
    """Split a line of text into a table of words."""
    return tuple(words.split())
