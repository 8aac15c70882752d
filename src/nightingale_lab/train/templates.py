"""Sentences from templates for what free text lacks: numbers in words, dates, money, names, letters,
one-word fragments, lists, and rare words.

They have the form that the English normalizer emits ("nineteen eighty-four", "F B I", "dot com"), which is the
input at inference. Patterns are in patterns.txt, words in words.txt; all choices come from the caller's generator.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files

from nightingale.text.english.words import cardinal, ordinal, year

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def clock(hour: int, minute: int) -> str:
    """Return a time of day on a twelve-hour clock."""
    if minute == 0:
        return f"{cardinal(hour)} o'clock"
    return f"{cardinal(hour)} {'oh ' + cardinal(minute) if minute < 10 else cardinal(minute)}"


def _sections(name: str) -> dict[str, list[str]]:
    """Return the lines of a text file by their [headings], without comments and blank lines."""
    found: dict[str, list[str]] = {}
    for line in (files("nightingale_lab.train") / name).read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"\[(.+)\]", line):
            current = found.setdefault(heading[1], [])
        elif line and not line.startswith("#"):
            current.append(line)
    return found


class TemplateWriter:
    """Generates sentences; `rare` are words that free text lacks."""

    def __init__(
        self,
        rng: random.Random,
        rare: Sequence[str] = (),
        *,
        patterns: str = "patterns.txt",
        words: str = "words.txt",
    ) -> None:
        self._rng, self._rare = rng, rare
        listed = _sections(words)
        self._words = {name: [w for row in rows for w in row.split("; ")] for name, rows in listed.items()}
        self._kinds: dict[str, list[str]] = {}
        self._shares: dict[str, int] = {}
        for heading, of_kind in _sections(patterns).items():
            kind, share = heading.split()
            self._kinds[kind] = of_kind if rare else [p for p in of_kind if "{rare" not in p]
            self._shares[kind] = int(share) if self._kinds[kind] else 0
        self._made: dict[str, Callable[[], str]] = {
            "n": lambda: cardinal(self._amount()), "small": lambda: cardinal(rng.randint(1, 99)),
            "digit": lambda: cardinal(rng.randint(1, 9)), "ordinal": lambda: ordinal(rng.randint(1, 130)),
            "decimal": self._decimal, "year": lambda: year(str(rng.randint(1066, 2040))), "date": self._date,
            "time": self._time, "money": self._money, "name": self._name,
            "letter": lambda: rng.choice(LETTERS),
            "letters": lambda: " ".join(rng.choices(LETTERS, k=rng.randint(1, 6))),
            "spelled": lambda: " ".join(self._word("acronym")), "phone": self._phone,
            "spelled_name": lambda: " ".join(re.sub("[^A-Z]", "", self._word("last").upper())),
            "code": lambda: self._digits(rng.randint(3, 4)), "list": self._list,
            "rare": lambda: rng.choice(self._rare),
        }  # fmt: skip

    def lines(self, count: int) -> Iterator[str]:
        """Return `count` sentences, each kind with its share."""
        return (line for _, line in self._filled(count))

    def _filled(self, count: int) -> Iterator[tuple[str, str]]:
        """Yield the kind and the text of each sentence."""
        for kind in self._rng.choices(list(self._kinds), list(self._shares.values()), k=count):
            yield kind, self._fill(self._rng.choice(self._kinds[kind]))

    def about(self, word: str) -> str:
        """Return a line that contains `word`, to train its pronunciation."""
        return self._fill(self._rng.choice(self._kinds["words"]), rare=word)

    def _fill(self, pattern: str, **given: str) -> str:
        line = re.sub(r"\{(\w+)\}", lambda m: given[m[1]] if m[1] in given else self._slot(m[1]), pattern)
        return re.sub("[A-Za-z]", lambda m: m[0].upper(), line, count=1)

    def _slot(self, slot: str) -> str:
        name = slot.rstrip("0123456789")
        return self._made[name]() if name in self._made else self._word(name)

    def _word(self, kind: str) -> str:
        return self._rng.choice(self._words[kind])

    def _name(self) -> str:
        return self._word("first") + (f" {self._word('last')}" if self._rng.random() < 0.5 else "")

    def _amount(self) -> int:
        return self._rng.randrange(10 ** self._rng.choice((1, 2, 2, 3, 3, 4, 5, 6, 8))) + 1

    def _digits(self, count: int) -> str:
        zero = self._rng.choice(("zero", "oh"))
        return " ".join(cardinal(d) if (d := self._rng.randrange(10)) else zero for _ in range(count))

    def _phone(self) -> str:
        return ", ".join(self._digits(count) for count in (3, 3, 4))

    def _decimal(self) -> str:
        places = " ".join(cardinal(self._rng.randrange(10)) for _ in range(self._rng.randint(1, 3)))
        return f"{cardinal(self._rng.randrange(100))} point {places}"

    def _date(self) -> str:
        day, month = ordinal(self._rng.randint(1, 31)), self._word("month")
        date = self._rng.choice((f"{month} {day}", f"the {day} of {month}"))
        return date + (f", {year(str(self._rng.randint(1500, 2030)))}" if self._rng.random() < 0.5 else "")

    def _time(self) -> str:
        minute = self._rng.choice((0, 0, 5, 10, 15, 20, 30, 45, self._rng.randint(1, 59)))
        time = clock(self._rng.randint(1, 12), minute)
        return time if minute == 0 else time + self._rng.choice(("", " A M", " P M"))

    def _money(self) -> str:
        r, small = self._rng, cardinal(self._rng.randint(2, 99))
        return r.choice((
            f"{cardinal(self._amount() + 1)} dollars", f"{cardinal(r.randint(2, 300))} dollars and {small} cents",
            f"{cardinal(self._amount() + 1)} euros", f"{small} pounds", f"{small} cents",
            f"{self._decimal()} {r.choice(('million', 'billion'))} dollars",
        ))  # fmt: skip

    def _list(self) -> str:
        items = self._rng.sample(self._words["thing"], self._rng.randint(2, 7))
        return " and ".join(items) if len(items) == 2 else f"{', '.join(items[:-1])}, and {items[-1]}"
