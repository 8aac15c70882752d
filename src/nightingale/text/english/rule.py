"""The type of a normalization rule: a pattern, and a template or function for what it matches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Final

from nightingale.text.english import words
from nightingale.text.tables import word_list, word_map

Match = re.Match[str]
SPACES: Final = r"\s{2,}|[^\S ]"
"""White space that is not a single space. Most spaces of a text are, and need no replacement."""


class Rule:
    """Replaces every match of a pattern.

    A replacement is a function or a template of `str.format` over the groups. A template names how to read a
    group: by a function of `words` ("{1:ordinal}") or by a table ("{month:months}"). What stands before that
    name is only written if the group matched: "{year:, year}".

    A rule that gives `needs` is skipped in texts that have none of those characters. The pattern is compiled
    on first use, so most sentences never compile the rules about numbers and symbols.
    """

    def __init__(
        self, pattern: str, replacement: str | Callable[[Match], str], flags: int = 0, *, needs: str = ""
    ) -> None:
        self.pattern, self.needs = pattern, needs
        self._replacement, self._flags = replacement, flags

    @cached_property
    def _sub(self) -> Callable[[str | Callable[[Match], str], str], str]:
        return re.compile(self.pattern, self._flags).sub

    def apply(self, text: str) -> str:
        if self.needs and not any(character in text for character in self.needs):
            return text
        template = self._replacement
        if isinstance(template, str) and "{" in template:
            return self._sub(lambda match: fill(template, match), text)
        return self._sub(template, text)


class _Group(str):
    """A matched group, which a template reads by the name after the colon."""

    def __format__(self, spec: str) -> str:
        before, space, name = spec.rpartition(" ")
        if not self:
            return ""
        read = getattr(words, name, None) or (word_map(name).get if name else str)
        return f"{before}{space}{read(self) or self}"


def fill(template: str, match: Match) -> str:
    """Return a template with the groups of a match."""
    groups = [_Group(match[at] or "") for at in range(len(match.groups()) + 1)]
    return template.format(
        *groups, **{name: _Group(group or "") for name, group in match.groupdict().items()}
    )


def apply_all(rules: Iterable[Rule], text: str) -> str:
    for rule in rules:
        text = rule.apply(text)
    return text


def any_of(choices: str | Iterable[str]) -> str:
    """Return a pattern for any word of a table or list, longest first, so that no prefix matches instead."""
    choices = word_list(choices) if isinstance(choices, str) else choices
    return "|".join(re.escape(word) for word in sorted(choices, key=lambda word: (-len(word), word)))
