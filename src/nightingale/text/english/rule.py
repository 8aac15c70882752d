"""The type of a normalization rule: a pattern, and a template or function for what it matches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property, partial
from string import Formatter
from typing import Final

from nightingale.text.english import words
from nightingale.text.normalized_text import Filled, Match, NormalizedText, Replacement, fill_groups
from nightingale.text.tables import word_list, word_map

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

    def __init__(self, pattern: str, replacement: Replacement, flags: int = 0, *, needs: str = "") -> None:
        self.pattern, self.needs = pattern, needs
        self._replacement, self._flags = replacement, flags
        if isinstance(replacement, str) and "{" in replacement:
            self._replacement = partial(fill, replacement)

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern, self._flags)

    @cached_property
    def _search(self) -> Callable[[str], Match | None]:
        return self._compiled.search

    def apply(self, text: NormalizedText) -> NormalizedText:
        if self.needs and not any(character in text for character in self.needs):
            return text
        # Most rules match nothing in most sentences.
        first = self._search(text)
        return text if first is None else text.sub(self._compiled, self._replacement, first.start())


def fill(template: str, match: Match, **said: str) -> Filled:
    """Return a template with the groups of a match.

    said: Groups that are read otherwise, and how. The template has them without a name to read them by.
    """
    return fill_groups(match, _parts(template, match, said))


def _parts(template: str, match: Match, said: dict[str, str]) -> Iterator[tuple[str | int | None, str]]:
    for literal, name, spec in _parsed(template):
        yield None, literal
        if name is None:
            continue
        group = int(name) if name.isdecimal() else name
        written = match[group] or ""
        before, space, read_by = spec.rpartition(" ")
        text = said.get(name)
        if text is None and written:
            read = getattr(words, read_by, None) or (word_map(read_by).get if read_by else str)
            text = read(written) or written
        if text:
            yield None, before + space
            yield group, text


@cache
def _parsed(template: str) -> list[tuple[str, str | None, str]]:
    return [(literal, name, spec or "") for literal, name, spec, _ in Formatter().parse(template)]


def apply_all(rules: Iterable[Rule], text: str) -> NormalizedText:
    normalized = NormalizedText.of(text)
    for rule in rules:
        normalized = rule.apply(normalized)
    return normalized


def any_of(choices: str | Iterable[str]) -> str:
    """Return a pattern for any word of a table or list, longest first, so that no prefix matches instead."""
    choices = word_list(choices) if isinstance(choices, str) else choices
    return "|".join(re.escape(word) for word in sorted(choices, key=lambda word: (-len(word), word)))
