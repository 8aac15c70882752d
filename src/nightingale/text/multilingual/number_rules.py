"""Numbers as words, by rules in a subset of ICU's rule-based number format (RBNF).

A rule set has one rule a line, `base: words`. The rule with the largest base that is not above the number
applies. Several words after a base, with commas between them, are the rules of consecutive numbers, or of every
tenth one after `base+10`. In the words,

    <<  <name<   is the quotient of the number and the rule's divisor, spelled by the same or the named set
    >>  >name>   is the remainder
    =name=       is the number itself, spelled by the named set
    [...]        is left out if there is no remainder
    {a|b|c}      is the form for the quotient, by the plural rule of the language
    _            is a space at the beginning

The divisor is the largest power of ten that is not above the base; `base/radix` takes powers of the radix.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

PLURALS: Final[Mapping[str, Callable[[int], int]]] = {
    "one": lambda n: 0 if n == 1 else 1,
    "below_two": lambda n: 0 if n < 2 else 1,
    "hebrew": lambda n: n - 1 if n in (1, 2) else 2,
    "arabic": lambda n: n - 1 if n in (1, 2) else 2 if 3 <= n % 100 <= 10 else 3 if n % 100 > 10 else 4,
    "polish": lambda n: 0 if n == 1 else 1 if _few(n) else 2,
    "russian": lambda n: 0 if n % 10 == 1 and n % 100 != 11 else 1 if _few(n) else 2,
}
"""Plural rules: which form follows a number. A language has as many forms as its rule returns indices."""
_OPTIONAL: Final = re.compile(r"\[([^\]]*)\]")
_PART: Final = re.compile(r"<(\w*)<|>(\w*)>|=(\w+)=|\{([^}]*)\}")


def _few(number: int) -> bool:
    return number % 10 in (2, 3, 4) and number % 100 not in (12, 13, 14)


def form_at(forms: str, index: int) -> str:
    """Return one of the forms `a|b|c`; the last one stands for all after it."""
    return forms.split("|")[: index + 1][-1]


class NumberRule(NamedTuple):
    """A spelling of the numbers from a base on."""

    base: int
    divisor: int
    words: str


class Endings:
    """Replacements of the ends of words, such as those of cases and genders."""

    def __init__(self, pairs: Sequence[Sequence[str]]) -> None:
        """pairs: a pattern of the end of a word, and what replaces it, with `&` for the end itself."""
        self._replacements = [replacement for _, replacement in pairs]
        self._pattern = re.compile("|".join(rf"({pattern})(?!\w)" for pattern, _ in pairs))

    def apply(self, words: str) -> str:
        """Return the words with each end replaced by the first pattern that matches it."""
        return self._pattern.sub(
            lambda match: self._replacements[(match.lastindex or 1) - 1].replace("&", match[0]), words
        )


class NumberRules:
    """The rule sets of one language."""

    def __init__(
        self, sets: Mapping[str, str], endings: Mapping[str, Sequence[Sequence[str]]], plural: str
    ) -> None:
        """Parse the rule sets.

        Args:
            sets: Name -> rules. The set "cardinal" must be there.
            endings: Name -> the set that a further one is made from, and (pattern, replacement) of its endings.
            plural: A name of `PLURALS`.
        """
        self._sets = {name: _parse(text) for name, text in sets.items()}
        self._endings = {name: (str(base), Endings(pairs)) for name, (base, *pairs) in endings.items()}
        self.plural = PLURALS[plural]

    def spell(self, number: int, name: str = "cardinal") -> str:
        """Return a number in words. A set that the language lacks is "cardinal"."""
        if name in self._endings:
            base, change = self._endings[name]
            return change.apply(self.spell(number, base))
        rules = self._sets.get(name) or self._sets["cardinal"]
        rule = rules[bisect_right(rules, number, key=lambda one: one.base) - 1]
        quotient, rest = divmod(number, rule.divisor)

        def part(match: re.Match[str]) -> str:
            mark = match[0][0]
            if mark == "{":
                return form_at(match[4], self.plural(quotient))
            if mark == "=":
                return self.spell(number, match[3])
            return (
                self.spell(quotient, match[1] or name) if mark == "<" else self.spell(rest, match[2] or name)
            )

        return _PART.sub(part, _OPTIONAL.sub(lambda found: found[1] if rest else "", rule.words))


def _parse(text: str) -> list[NumberRule]:
    rules = []
    for line in text.strip().splitlines():
        start, _, words = line.partition(":")
        start, _, step = start.partition("+")
        first, _, radix = start.partition("/")
        for at, one in enumerate(words.split(",")):
            base, divisor = int(first) + at * int(step or 1), 1
            while divisor * int(radix or 10) <= base:
                divisor *= int(radix or 10)
            rules.append(NumberRule(base, divisor, re.sub("^_", " ", one.strip())))
    return sorted(rules)
