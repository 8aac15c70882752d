"""The author's words: which part of a text each spoken word comes from.

A front end changes a text before it is spoken: "$5.50" becomes five words, "Dr." becomes "Doctor", and Markdown
is dropped. Here the words of a text are written out one by one, and this sequence is aligned with the words that
are spoken. A word that is written out otherwise in its sentence ("St.", "5 May") is aligned by its place.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Final, NamedTuple

from nightingale.text.code_blocks import CODE_BLOCK, has_fence
from nightingale.text.respelling import Respelling, SourceMap, respell

EQUAL, SIMILAR, OTHER, SYMBOL = 3.0, 1.0, 0.0, -0.5
"""Scores of a spoken word that is aligned with an equal word, one that begins alike, another one, or a symbol."""
ADDED, SKIPPED = -1.0, -0.4
"""Scores of a spoken word that is aligned with none, and of a written word that is not spoken."""
ALL_SKIPPED: Final = -4.0
"""The score of any number of written words before the first that is spoken, at least: a comment may be long."""
WINDOWS: Final = (60, 600, 6000)
"""Written words that are compared with a segment, besides three for each spoken word. The next number is tried if less
than half of the segment was found."""

_WORD: Final = re.compile(r"(?:(?!--)[^\s—])+(?:—|--)?")
"""A dash between two words belongs to the first."""
_MARKUP: Final = "*_~`|"
"""Characters that are no part of a word at its ends."""


class SourceWord(NamedTuple):
    """A word as the author wrote it, and its place in the text."""

    text: str
    start: int
    end: int
    """The position after its last character."""


class SegmentSource(NamedTuple):
    """The author's words of a spoken segment."""

    words: tuple[SourceWord, ...]
    """For each spoken word; several may have the same."""
    id_words: list[int]
    """The index of the spoken word that each text id belongs to."""


class WrittenWord(NamedTuple):
    """A word that the author's text has when it is written out."""

    letters: str
    """Empty for a symbol, which may be spoken or not."""
    source: SourceWord


class SourceWords:
    """Assign spoken words to the words of one text, segment by segment, in the order of the text."""

    def __init__(
        self,
        author: str,
        spell_out: Callable[[str], str] | None,
        *,
        changes: Sequence[Respelling] = (),
        reads_code: bool = False,
        place: Callable[[int], int] = lambda at: at,
    ) -> None:
        """Read a text lazily.

        Args:
            author: The text as it was written.
            spell_out: The normalizer of the front end, if it has one.
            changes: What a lexicon changes in it.
            reads_code: Code blocks are spoken too.
            place: Returns where a position of this text is in the text of the request.
        """
        text = respell(author, changes)
        if has_fence(text) and not reads_code:  # blanks, so that positions stay
            text = CODE_BLOCK.sub(lambda block: " " * len(block[0]), text)
        self._unread = _written_words(author, text, spell_out, changes, place)
        self._window: deque[WrittenWord] = deque()

    def take(self, spoken: str, encoded: Sequence[tuple[str, int]]) -> SegmentSource:
        """Return the author's words of the next spoken segment.

        encoded: What `TextTokenizer.encode_words` returns for it.
        """
        letters = [letters_of(word) for word in spoken.split()]
        for words in WINDOWS:
            known = len(self._window)
            self._window.extend(islice(self._unread, max(0, 3 * len(letters) + words - known)))
            if words > WINDOWS[0] and len(self._window) == known:
                break  # there are no more
            window = list(self._window)
            matches = _align(letters, [word.letters for word in window])
            found = sum(
                m is not None and word == window[m].letters for word, m in zip(letters, matches, strict=True)
            )
            if 2 * found >= len(letters):
                break
        used = max((match for match in matches if match is not None), default=-1)
        for _ in range(used + 1):
            self._window.popleft()
        return SegmentSource(_sources(letters, matches, window), words_of_ids(spoken, encoded))


def letters_of(word: str) -> str:
    """Return the letters and digits of a word in lower case."""
    return "".join(character for character in word.lower() if character.isalnum())


def _written_words(
    author: str,
    text: str,
    spell_out: Callable[[str], str] | None,
    changes: Sequence[Respelling],
    place: Callable[[int], int],
) -> Iterator[WrittenWord]:
    positions = SourceMap(changes)
    for found in _WORD.finditer(text):
        word = found[0].strip(_MARKUP)
        if not word:
            continue
        start = found.start() + found[0].find(word)
        first, last = positions.span(start)[0], positions.span(start + len(word) - 1)[1]
        source = SourceWord(author[first:last], place(first), place(last - 1) + 1)
        letters = letters_of(word)
        is_plain = word.rstrip(".,;:!?\"')").lstrip("\"'(").isalpha() and (word[1:].islower() or not word[1:])
        said = [letters] if is_plain or spell_out is None else list(map(letters_of, spell_out(word).split()))
        for one in [part for part in said if part] or [letters]:
            yield WrittenWord(one, source)


def _align(spoken: Sequence[str], written: Sequence[str]) -> list[int | None]:
    """Return the index of the written word for each spoken word; None for words that are only spoken.

    The best alignment in the order of both, which may end before the last written word. Of two that are equally good,
    the one that ends later: "₹5 lakh" is "five lakh rupees".
    """
    same = 0
    while same < min(len(spoken), len(written)) and spoken[same] == written[same]:
        same += 1
    matches: list[int | None] = list(range(same))
    spoken, written = spoken[same:], written[same:]
    skips = [0.0]
    for word in written:
        skips.append(max(skips[-1] + (SKIPPED if word else 0.0), ALL_SKIPPED))
    rows, steps = [skips], list[list[str]]()
    for word in spoken:
        above, row, step = rows[-1], [rows[-1][0] + ADDED], ["added"]
        for at, other in enumerate(written):
            best, how = above[at] + _score(word, other), "aligned"
            if above[at + 1] + ADDED > best:
                best, how = above[at + 1] + ADDED, "added"
            skip = row[at] + (SKIPPED if other else 0.0)
            if skip > best:
                best, how = skip, "skipped"
            row.append(best)
            step.append(how)
        rows.append(row)
        steps.append(step)
    # The words after the last one are those of the next segment, or were not spoken: two of them count at most.
    ends = [score + max(SKIPPED * (len(written) - end), 2 * SKIPPED) for end, score in enumerate(rows[-1])]
    at, found = max(range(len(ends)), key=lambda end: (round(ends[end], 3), end)), list[int | None]()
    for step in reversed(steps):
        while at and step[at] == "skipped":
            at -= 1
        if step[at] == "aligned":
            at -= 1
            found.append(at + same)
        else:
            found.append(None)
    return [*matches, *reversed(found)]


def _score(spoken: str, written: str) -> float:
    if spoken == written:
        return EQUAL
    if not written:
        return SYMBOL
    return SIMILAR if spoken[:3] == written[:3] or (spoken[:1] == written[:1] and len(written) < 3) else OTHER


def _sources(
    spoken: Sequence[str], matches: Sequence[int | None], written: Sequence[WrittenWord]
) -> tuple[SourceWord, ...]:
    """Return a source for each spoken word.

    One without a match has that of the word before it; or of the word after it, if that one is not spoken as it is
    written and the one before it is: "Henry VIII" is "Henry | the eighth".
    """
    found: list[SourceWord | None] = [None if match is None else written[match].source for match in matches]
    equal = [
        match is not None and word == written[match].letters
        for word, match in zip(spoken, matches, strict=True)
    ]
    for at in range(len(found) - 1, -1, -1):  # from the end, so that a run of such words stays together
        before, after = found[at - 1] if at else None, found[at + 1] if at + 1 < len(found) else None
        if (
            found[at] is None
            and after is not None
            and not equal[at + 1]
            and (before is None or equal[at - 1])
        ):
            found[at] = after
    for at, source in enumerate(found):
        if source is None and at:
            found[at] = found[at - 1]
    first = next((source for source in found if source is not None), SourceWord("", 0, 0))
    return tuple(source or first for source in found)


def words_of_ids(spoken: str, encoded: Sequence[tuple[str, int]]) -> list[int]:
    """Return the index of the spoken word that each text id belongs to.

    Args:
        spoken: The text as the front end has prepared it.
        encoded: What `TextTokenizer.encode_words` returns for it. Its words may be divided otherwise, and in some
            languages they have other letters: places are compared by the share of letters before them.
    """
    ends = _letter_counts(spoken.split())
    encoded_ends = _letter_counts([word for word, _ in encoded])
    scale = ends[-1] / max(1, encoded_ends[-1])
    found: list[int] = []
    for (_, ids), start, end in zip(encoded, [0, *encoded_ends], encoded_ends, strict=False):
        middle = (start + max(start + 1, end)) / 2 * scale
        found += [min(bisect_left(ends, middle), len(ends) - 1)] * ids
    return found


def _letter_counts(words: Sequence[str]) -> list[int]:
    """Return the number of letters up to the end of each word."""
    return list(accumulate(len(letters_of(word)) for word in words)) or [0]
