"""Word error rate that counts what a listener would count, and nothing a typist would.

The rule, applied alike to the teacher, to peers and to us: case, punctuation and accents do not count; a
word may be written joined or apart ("riverbank", "river bank"), contracted or in full ("it's", "it is"), in
British or American spelling, and a number in digits or in words ("1984", "nineteen eighty-four").
Everything else does: a name heard as another name, a homophone of another meaning, a plural lost, are
errors.

Both texts become tokens, each with the set of letter runs it may stand for. Levenshtein's distance is then
taken over tokens, with one addition: one token matches a run of tokens at no cost if their letters can be
the same. The rate is errors over the words of the wanted text; over a set, all errors over all words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from nightingale_lab.bench.numerals import readings
from nightingale_lab.bench.spelling import spoken_forms

LONGEST_RUN = 14
"""Tokens that one token may match: "1,234,567" has eleven words."""

_QUOTES = str.maketrans({"’": "'", "‘": "'", "`": "'", "ʼ": "'"})
_SYMBOLS = {"%": " percent ", "&": " and ", "@": " at ", "+": " plus ", "=": " equals "}
_NUMBER_STARTS = "one two thr four fif five six seven eigh nin ten ele twel twen thir forty".replace(" ", "|")
_OPTIONAL_AND = re.compile(rf"(?<=hundred|housand|million|billion) and (?={_NUMBER_STARTS})")
_TOKEN = re.compile(
    r"[$£€]\d+(?:\.\d\d)?(?![\d.]*\d)|\d{1,2}:\d\d|\d+/\d+|\d*\.\d+|\d+(?:st|nd|rd|th)\b|\d+0'?s\b|\d+|[^\W\d_]+(?:'[^\W\d_]+)*"
)


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    forms: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What one utterance got wrong."""

    words: int
    """Words of the wanted text."""
    substitutions: int
    deletions: int
    insertions: int
    lost_tail: int
    """Words missing at the very end: a cut-off."""
    extra_tail: int
    """Words added after the end: a runaway."""

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per wanted word; 1 for words heard where none were wanted."""
        return self.errors / self.words if self.words else float(self.errors > 0)


def tidy(text: str) -> str:
    """Lower case, no accents, signs as words, $2 million as 2 million dollars, 1,234 as 1234, U.S. as us."""
    text = unicodedata.normalize("NFKC", text).translate(_QUOTES).casefold()
    text = "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"\bper cent\b", "percent", text)
    text = _OPTIONAL_AND.sub(" ", text)
    text = re.sub(r"\$(\d[\d.]*) ((?:m|b|tr)illion)", r"\1 \2 dollars", text)
    text = re.sub(r"£(\d[\d.]*) ((?:m|b|tr)illion)", r"\1 \2 pounds", text)
    text = re.sub(r"\b([a-z])\.(?=[a-z]\b)", r"\1", text)
    for sign, word in _SYMBOLS.items():
        text = text.replace(sign, word)
    return text


def tokens(text: str, *, digits_as_words: bool = False) -> list[Token]:
    """The text's tokens; with `digits_as_words`, each numeral is replaced by its shortest reading."""
    out: list[Token] = []
    for piece in _TOKEN.findall(tidy(text)):
        spoken = readings(piece) if any(c.isdigit() for c in piece) else []
        if spoken and digits_as_words:
            out += [Token(word, frozenset({word})) for word in min(spoken, key=len)]
        elif spoken:
            out.append(Token(piece, frozenset("".join(words) for words in spoken)))
        else:
            out.append(Token(piece, frozenset(spoken_forms(piece))))
    return out


def word_count(text: str) -> int:
    return len(tokens(text, digits_as_words=True))


def run_matching(one: Token, many: list[Token], start: int) -> list[int]:
    """Lengths of the runs of `many` from `start` whose letters can be those of `one`."""
    found: list[int] = []
    grown = {""}
    for length, token in enumerate(many[start : start + LONGEST_RUN], start=1):
        joined = {left + right for left in grown for right in token.forms}
        grown = {text for text in joined if any(form.startswith(text) for form in one.forms)}
        if grown & one.forms:
            found.append(length)
        if not grown:
            break
    return found


@lru_cache(maxsize=4096)
def unlikeness(one: str, other: str) -> float:
    """Which share of the letters must be changed, added or left out to make one word of another."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        before, row = row, [i]
        for j, its in enumerate(other, start=1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != its)))
    return row[-1] / max(len(one), len(other), 1)


def align(wanted: list[Token], heard: list[Token]) -> list[tuple[int, int, int]]:
    """The cheapest path as steps (wanted tokens used, heard tokens used, cost), in order.

    Of paths with equally many errors, the one whose words were mistaken for the likeliest: "her attractions"
    heard as "retractions" has lost "her", and not its end.
    """
    rows, columns = len(wanted) + 1, len(heard) + 1
    far = (rows + columns + 1, 0.0)
    cost = [[far] * columns for _ in range(rows)]
    step: list[list[tuple[int, int, int]]] = [[(0, 0, 0)] * columns for _ in range(rows)]
    cost[0][0] = (0, 0.0)

    def reach(i: int, j: int, used: tuple[int, int, int], unlike: float = 0.0) -> None:
        total = cost[i][j][0] + used[2], cost[i][j][1] + unlike
        # Of two equal paths the later stands, so that errors gather at the end: they tell of bad endings.
        if total <= cost[i + used[0]][j + used[1]]:
            cost[i + used[0]][j + used[1]] = total
            step[i + used[0]][j + used[1]] = used

    for i in range(rows):
        for j in range(columns):
            if i < len(wanted) and j < len(heard):
                for length in run_matching(wanted[i], heard, j):
                    reach(i, j, (1, length, 0))
                for length in run_matching(heard[j], wanted, i):
                    reach(i, j, (length, 1, 0))
                reach(i, j, (1, 1, 1), unlikeness(wanted[i].text, heard[j].text))
            if i < len(wanted):
                reach(i, j, (1, 0, 1))
            if j < len(heard):
                reach(i, j, (0, 1, 1))
    path: list[tuple[int, int, int]] = []
    i, j = len(wanted), len(heard)
    while i or j:
        path.append(step[i][j])
        i, j = i - step[i][j][0], j - step[i][j][1]
    return path[::-1]


def _tail(path: list[tuple[int, int, int]], kind: tuple[int, int, int]) -> int:
    count = 0
    for used in reversed(path):
        if used != kind:
            break
        count += 1
    return count


def compare(wanted: str, heard: str) -> Comparison:
    """Counts the errors of one utterance. Numerals are tried whole and as words; the kinder count holds."""
    words = word_count(wanted)
    best: Comparison | None = None
    for digits_as_words in (False, True):
        sides = [tokens(text, digits_as_words=digits_as_words) for text in (wanted, heard)]
        path = align(*sides)
        count = Comparison(
            words=words,
            substitutions=path.count((1, 1, 1)),
            deletions=path.count((1, 0, 1)),
            insertions=path.count((0, 1, 1)),
            lost_tail=_tail(path, (1, 0, 1)),
            extra_tail=_tail(path, (0, 1, 1)),
        )
        if best is None or count.errors < best.errors:
            best = count
    assert best is not None
    return best


def corpus_rate(comparisons: Iterable[Comparison]) -> float:
    """All errors over all wanted words: long sentences weigh more, as they should."""
    kept = list(comparisons)
    words = sum(item.words for item in kept)
    return sum(item.errors for item in kept) / words if words else 0.0
