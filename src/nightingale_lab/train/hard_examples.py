"""Lines for what wren got wrong: spelled letters, digits, single words, repeated words, names, long sentences, runs
of short sentences, contractions, and the same words with every final mark.

They are made of free sentences and of word lists, in the form that the English normalizer emits. Patterns and the
share of each kind are in hard_patterns.txt, words in hard_words.txt.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from nightingale.text.english.words import cardinal
from nightingale_lab.train.templates import LETTERS, TemplateWriter

FINAL_MARKS = ".?!"
DIGIT_GROUPS = (
    (3, 4), (3, 3, 4), (3, 3, 4), (4,), (3,), (5,), (6,), (4, 4), (3, 2, 4), (1, 3, 3, 4), (2, 2, 2), (4, 4, 4, 4),
)  # fmt: skip
"""Lengths of the groups of phone numbers and codes."""
LOWERED = frozenset({
    "The", "A", "An", "He", "She", "It", "They", "We", "You", "This", "That", "There", "These", "Those", "His", "Her",
    "My", "Your", "Their", "Our", "In", "On", "At", "For", "With", "When", "If", "As", "Some", "Many", "All", "Most",
    "No",
})  # fmt: skip
"""First words that lose their capital inside a sentence; others may be names."""
LISTED_WORDS = 6000


class HardExamples(TemplateWriter):
    """Generates the lines from free sentences, frequent words (the most frequent first) and names."""

    def __init__(
        self, rng: random.Random, sentences: Sequence[str], words: Sequence[str], names: Sequence[str]
    ) -> None:
        super().__init__(rng, patterns="hard_patterns.txt", words="hard_words.txt")
        plain = [s[:-1] for s in sentences if re.fullmatch(r"[A-Z][A-Za-z', -]+\.", s)]
        lists = {
            "brief": [s for s in plain if 2 <= len(s.split()) <= 6],
            "sentence": [s for s in plain if 4 <= len(s.split()) <= 12],
            "question": [s for s in sentences if s.endswith("?") and len(s.split()) <= 14],
            "frequent": list(words),
            "proper": list(names),
        }
        for name, items in lists.items():
            self._words[name] = items or ["Yes"]
        self._made |= {
            "group": self._group, "digits": self._digit_groups, "mark": lambda: rng.choice("...!?"),
            "repeated": lambda: self._repeat("repeatable"), "repeated_adverb": lambda: self._repeat("adverb"),
            "clauses": self._clauses, "run": self._run, "enumeration": self._enumeration,
            "Pair": lambda: _capitalized(self._word("pair")), "Short": lambda: _capitalized(self._word("short")),
            "Negated": lambda: _capitalized(self._word("negated")),
            "pronoun_small": lambda: _small_pronoun(self._word("pronoun")),
            "contracted_small": lambda: _small_pronoun(self._word("contracted")),
            "auxiliary_small": lambda: self._word("auxiliary").lower(),
            "when": lambda: f" {self._word('time')}" if rng.random() < 0.6 else "",
        }  # fmt: skip

    def lines(self, count: int) -> Iterator[str]:
        """Yield lines of `count` patterns; each one of the kind `marks` becomes a line for every final mark."""
        for kind, line in self._filled(count):
            if kind == "marks":
                yield from (line + mark for mark in FINAL_MARKS)
            else:
                yield line

    def _group(self) -> str:
        """Return spelled letters."""
        rng, kind = self._rng, self._rng.random()
        if kind < 0.06:
            return self._word("and_acronym")
        if kind < 0.5:
            letters = self._word("acronym")
        elif kind < 0.6:  # a section of the alphabet
            start = rng.randrange(22)
            letters = LETTERS[start : start + rng.randint(3, 9)]
        elif kind < 0.7:
            letters = re.sub("[^A-Z]", "", self._word("proper").upper())[:9] or "AB"
        elif kind < 0.78:  # repeated letters
            repeated = (rng.choice(LETTERS) * rng.choice((1, 1, 2, 2, 3)) for _ in range(rng.randint(1, 4)))
            letters = "".join(repeated)[:8]
        else:
            letters = "".join(rng.choices(LETTERS, k=rng.choice((1, 2, 2, 3, 3, 3, 4, 4, 5, 6))))
        digit = [cardinal(rng.randint(1, 9))] if rng.random() < 0.06 else []
        return " ".join([*letters, *digit])

    def _digit_groups(self) -> str:
        zero = self._rng.choice(("zero", "zero", "oh"))

        def group(count: int) -> str:
            digits: list[str] = []
            while len(digits) < count:
                digit = self._rng.randrange(10)
                digits += [cardinal(digit) if digit else zero] * self._rng.choice((1, 1, 1, 2, 2, 3))
            return " ".join(digits[:count])

        return ", ".join(map(group, self._rng.choice(DIGIT_GROUPS)))

    def _repeat(self, words: str) -> str:
        return self._rng.choice((" ", ", ")).join([self._word(words)] * self._rng.randint(2, 6))

    def _clauses(self) -> str:
        line = self._word("sentence")
        for _ in range(self._rng.choice((1, 2, 2, 3))):
            clause, join = self._word("sentence"), self._word("join")
            if clause.split()[0] in LOWERED:
                clause = clause[0].lower() + clause[1:]
            line += f"{join} {clause}" if join.startswith(",") else f" {join} {clause}"
        return line

    def _run(self) -> str:
        return " ".join(f"{self._word('brief')}." for _ in range(self._rng.choice((2, 3, 3, 4, 5))))

    def _enumeration(self) -> str:
        items = self._rng.choices(self._words["frequent"][:LISTED_WORDS], k=self._rng.randint(3, 7))
        return f"{', '.join(items[:-1])}, and {items[-1]}"


def _small_pronoun(pronoun: str) -> str:
    return pronoun if pronoun.startswith("I") else pronoun.lower()


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]
