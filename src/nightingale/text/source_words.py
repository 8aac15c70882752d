"""The author's words: which part of a text each spoken word comes from.

A front end changes a text before it is spoken: "$5.50" becomes five words, "Dr." becomes "Doctor", and Markdown
is dropped. `NormalizedText` knows where each letter came from; here the letters of spoken words become words as they
were written, from one space to the next.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import Final, NamedTuple

from nightingale.text.normalized_text import NormalizedText

_WORD: Final = re.compile(r"(?:(?!--)[^\s—])+(?:—|--)?")
"""A dash between two words belongs to the first."""
_MARKUP: Final = "*_~`|"
"""Characters that are no part of a word at its ends."""
_LETTER: Final = re.compile(r"[^\W_]")
_SPACE: Final = re.compile(r"\s|\Z")


class SourceWord(NamedTuple):
    """A word as the author wrote it, and its place in the text.

    It has spaces if it is spoken as one: "1 000 km" may be.
    """

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


class ReadSpan(NamedTuple):
    """Words of a text, and how they are spoken."""

    written: SourceWord
    spoken: str
    """Empty for what is left out."""


class SourceWords:
    """Assign spoken words to the words of one text, segment by segment, in the order of the text."""

    def __init__(self, author: str, *, place: Callable[[int], int] = lambda at: at) -> None:
        """Read a text lazily.

        Args:
            author: The text as it was written.
            place: Returns where a position of this text is in the text of the request.
        """
        self._author, self._place = author, place
        self._written = _written_words(author)
        self._window: deque[tuple[int, int]] = deque()
        """The next written words: their starts and ends."""
        self._letters: deque[tuple[NormalizedText, int]] = deque()
        """The next spoken letters: the text of each, and its place there. Segmentation keeps every letter."""
        self._divided = 0
        """The place at which a written word was divided between two segments."""
        self._text, self._end = NormalizedText.of(""), 0
        """The text of the last word that was taken, and where the word ends there."""

    def add(self, text: NormalizedText) -> None:
        """Add a part of what is spoken, whose original is the author's text, before the segments made of it."""
        self._letters.extend((text, letter.start()) for letter in _LETTER.finditer(text))

    def take(self, spoken: str, encoded: Sequence[tuple[str, int]]) -> SegmentSource:
        """Return the author's words of the next spoken segment.

        encoded: What `TextTokenizer.encode_words` returns for it.
        """
        return SegmentSource(self.take_words(spoken), words_of_ids(spoken, encoded))

    def take_words(self, spoken: str) -> tuple[SourceWord, ...]:
        """Return the author's word of each spoken word.

        A word that a rule added has that of the word before it; or of the word after it, if that one is not spoken as
        it is written and the one before it is: "Henry VIII" is "Henry | the eighth".
        """
        words, places, last = spoken.split(), list[list[int]](), list[int]()
        for word in words:
            start, end = self._span_of(word)
            place = self._place_of(start, end)
            # Words that share a written one have all that any of them touches.
            if place and last and place[0] < last[1]:
                last[1] = max(last[1], place[1])
                place = last
            places.append(place)
            last = place or last
        if last:
            last[1] = self._end_of_segment(end, last[1])
        found = [self._source_at(*place) if place else None for place in places]
        equal = [
            source is not None and letters_of(source.text) == letters_of(word)
            for source, word in zip(found, words, strict=True)
        ]
        for at in range(len(found) - 2, -1, -1):  # from the end, so that a run of such words stays together
            if found[at] is None and not equal[at + 1] and (at == 0 or equal[at - 1]):
                found[at] = found[at + 1]
        for at in range(1, len(found)):
            found[at] = found[at] or found[at - 1]
        first = next((source for source in found if source is not None), SourceWord("", 0, 0))
        return tuple(source or first for source in found)

    def _span_of(self, word: str) -> tuple[int, int]:
        """Return which characters of the author's text the next spoken word came from."""
        letters = len(_LETTER.findall(word))
        if not letters:  # a mark between two words
            text, until = self._letters[0] if self._letters else (self._text, len(self._text))
            start = text.find(word, self._end if text is self._text else 0, until)
            if start < 0:
                return 0, 0
            self._text, self._end = text, start + len(word)
            return text.source_span(start, self._end)
        text, first = self._letters[0]
        for _ in range(letters):
            self._text, last = self._letters.popleft()
        self._end = _SPACE.search(self._text, last).start()  # type: ignore[union-attr]
        return text.source_span(first, first + 1)[0], self._text.source_span(last, last + 1)[1]

    def _place_of(self, start: int, end: int) -> list[int]:
        """Return the start and the end of the written words that a part of the author's text touches."""
        while self._window and self._window[0][1] <= start:
            self._window.popleft()
        while not self._window or self._window[-1][1] < end:
            written = next(self._written, None)
            if written is None:
                break
            if written[1] > start:
                self._window.append(written)
        touched = [written for written in self._window if written[0] < end] if start < end else []
        return [max(touched[0][0], self._divided), touched[-1][1]] if touched else []

    def _end_of_segment(self, spoken: int, end: int) -> int:
        """Return the end of the last written word, or where the next segment begins after what is spoken of it."""
        if self._letters:
            text, at = self._letters[0]
            first = text.source_span(at, at + 1)[0]
            if self._divided < spoken <= first < end:
                self._divided = end = first
        return end

    def _source_at(self, start: int, end: int) -> SourceWord:
        return SourceWord(self._author[start:end], self._place(start), self._place(end - 1) + 1)


def letters_of(word: str) -> str:
    """Return the letters and digits of a word in lower case."""
    return "".join(character for character in word.lower() if character.isalnum())


def read_spans(text: NormalizedText) -> list[ReadSpan]:
    """Return the words of the original with what each is spoken as, and between them those that are left out."""
    author = text.original
    sources = SourceWords(author)
    sources.add(text)
    words = zip(sources.take_words(text), text.split(), strict=True)
    spoken = {
        source: " ".join(word for _, word in group) for source, group in groupby(words, lambda pair: pair[0])
    }
    spans, at = list[ReadSpan](), 0
    for source in (*spoken, SourceWord("", len(author), len(author))):
        for start, end in _written_words(author[at : source.start]):
            spans.append(ReadSpan(SourceWord(author[at + start : at + end], at + start, at + end), ""))
        if source.text:
            spans.append(ReadSpan(source, spoken[source]))
        at = source.end
    return spans


def _written_words(author: str) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each word, without markup."""
    for found in _WORD.finditer(author):
        word = found[0].strip(_MARKUP)
        if word:
            start = found.start() + found[0].find(word)
            yield start, start + len(word)


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
