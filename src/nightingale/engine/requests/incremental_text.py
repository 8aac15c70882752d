"""Incremental segmentation of text that arrives in small parts, such as the tokens of a language model.

The first segment may be a clause, so that audio starts before the first sentence is complete. Later segments
are sentences, which sound better: by then there is audio to play while they arrive. A segment is returned
only when no text that may follow can change it (`3.` waits, since `14` may come), so segments do not depend
on how the text was split into parts.

Each character is examined a bounded number of times, however small the parts are: what was decided about the text
so far is kept.

There is no clock and no thread here: a caller that treats a timeout as the end of a sentence calls `flush`.
"""

from __future__ import annotations

import re
from typing import Final

from nightingale.errors import ConfigError
from nightingale.text.sentences import DEFAULT_SPAN_CHARS, SHORT_CHARS, best_split
from nightingale.text.ssml import SSML_END, end_of_ssml, may_be_ssml
from nightingale.text.stops import (
    CLOSERS,
    LINK_CHARS,
    LOOKAHEAD_CHARS,
    TAG,
    TAG_CHARS,
    find_sentence_end,
    first_letter,
    inside_link,
    match_link,
    may_become_link,
    skip_chars,
    spoken_length,
    strip_link_addresses,
)

MIN_FIRST_CHARS: Final = 20
"""Length of the shortest first clause: a model synthesizes a single word badly."""

_CLOSERS: Final = re.escape(CLOSERS)
_CLAUSE: Final = re.compile(
    rf"[,;:،؛][{_CLOSERS}]{{0,8}}(?=\s)|\s[-–—](?=\s)|—(?=[^\W_])|[、，；：](?=[^{_CLOSERS}])"
)
_CLAUSE_MARK_CHARS: Final = 10
"""The length of the longest match of `_CLAUSE`, with the character that follows it."""
_NOT_SPACE: Final = re.compile(r"\S")
_BLOCK_CHARS: Final = 2048


class IncrementalSegmenter:
    """Split one text into segments while it arrives.

    The segments, joined, are the text as it was pushed, except for characters after the last word (such as
    a final line break).
    """

    def __init__(self, *, max_chars: int = DEFAULT_SPAN_CHARS, language: str | None = None) -> None:
        self._max_chars = max_chars
        self._language = language
        self._is_first = True
        self._ended = False
        self._start_segment("")

    def push(self, text: str) -> list[str]:
        """Add text and return the segments that are complete now."""
        if self._ended:
            raise ConfigError("this text has ended already", fix="Open a new session for the next text.")
        segments: list[str] = []
        # In blocks: the buffer is copied for every segment, which must not cost a whole book each time.
        for start in range(0, len(text), _BLOCK_CHARS):
            self._append(text[start : start + _BLOCK_CHARS])
            segments += self._take(final=False)
        return segments

    def flush(self) -> list[str]:
        """Return everything pushed so far, as if the text ended here. The next segment may be a clause."""
        segments = self._take(final=True)
        if self._letter is not None:
            segments.append(self._buffer)
            self._start_segment("")
        self._is_first = True
        return segments

    def end(self) -> list[str]:
        """Return the rest. After this call, `push` is an error and `end` returns nothing."""
        self._ended = True
        return self.flush()

    def _start_segment(self, text: str) -> None:
        """Begin a segment with this text, about which nothing is decided yet."""
        self._buffer = ""
        self._letter: int | None = None
        """The position of the first letter or digit."""
        self._text_start = self._text_end = 0
        """The text without the spaces around it."""
        self._earliest: int | None = None
        """The first position at which the segment is long enough to end."""
        self._undecided = self._undecided_clause = 0
        """There is no end of a sentence, and none of a clause, before these positions."""
        self._count_start = self._count_end = self._count = 0
        """A part of the text, and its spoken length without the addresses of links."""
        self._reach = 0
        """A text that is too long is cut when it reaches this position, or a later one."""
        self._ssml_end_from = 0
        """The tag that ends SSML is not before this position."""
        self._append(text)

    def _append(self, text: str) -> None:
        before = len(self._buffer)
        self._buffer += text
        if stripped := text.rstrip():
            if self._text_end == 0:
                self._text_start = before + len(text) - len(text.lstrip())
            self._text_end = before + len(stripped)
        if self._letter is None and (letter := first_letter(text)) is not None:
            self._letter = self._undecided = self._undecided_clause = before + letter

    def _take(self, *, final: bool) -> list[str]:
        segments: list[str] = []
        while (end := self._next_end(final)) is not None:
            segments.append(self._buffer[:end])
            self._start_segment(self._buffer[end:])
            self._is_first = False
        return segments

    def _next_end(self, final: bool) -> int | None:
        """Return the end of the next segment, or None while it is not certain."""
        buffer, letter, language = self._buffer, self._letter, self._language
        if letter is None:
            return None
        if self._is_first and may_be_ssml(buffer[self._text_start :]):
            start = self._ssml_end_from
            self._ssml_end_from = max(0, len(buffer) - len(SSML_END))
            return end_of_ssml(buffer, start)
        earliest = self._earliest_end(letter)
        end, settled = find_sentence_end(
            buffer, self._undecided, final=final, language=language, earliest=earliest, lines=True
        )
        if end is None:
            self._undecided = settled
        if self._is_first:
            clause_end, is_certain = self._clause_end(settled, earliest, final)
            if not is_certain:
                return None
            end = clause_end or end
        # Lengths count from the first letter: spaces and marks before it take no time to speak.
        opened = buffer.rfind("[", max(0, letter - LINK_CHARS), letter)
        link = match_link(buffer, opened) if opened >= 0 else None
        if link and link.end() <= letter:
            link = None
        first = link.start() if link else letter
        if end is not None and spoken_length(strip_link_addresses(buffer[first:end])) <= self._max_chars:
            return end
        if self._count_from(first) <= self._max_chars:
            return None
        # Too long, and no end within reach. Text to come may still close a tag or a link, or extend a mark.
        if not final:
            if self._may_reach_further():
                return None
            self._reach = skip_chars(buffer, first, self._max_chars + LOOKAHEAD_CHARS)
            if self._may_reach_further():
                return None
        window = buffer[first : first + self._max_chars + LINK_CHARS]
        cut = first + best_split(window, self._max_chars, language=language)
        # A link at the start may be longer than its spoken label.
        return max(cut, link.end()) if link and link.start() < cut else cut

    def _earliest_end(self, letter: int) -> int:
        """Return where the segment is long enough to end, without spaces at its ends."""
        if self._earliest is not None:
            return self._earliest
        buffer, chars = self._buffer, MIN_FIRST_CHARS if self._is_first else SHORT_CHARS
        start, length = self._text_start, 0
        for at in range(start, min(start + chars, self._text_end)):
            length += spoken_length(buffer[at])
            if length >= chars and not buffer[at].isspace():
                break
        else:
            if start + chars >= self._text_end:
                return len(buffer) + 1
            found = _NOT_SPACE.search(buffer, start + chars)
            at = found.start() if found else start + chars
        self._earliest = max(letter, at) + 1
        return self._earliest

    def _clause_end(self, limit: int, earliest: int, final: bool) -> tuple[int | None, bool]:
        """Return the end of the first long enough clause before `limit`, and whether that is certain."""
        buffer = self._buffer
        for match in _CLAUSE.finditer(buffer, self._undecided_clause, limit + 1):
            end = match.end()
            if end > limit:
                break
            if end >= earliest and not _inside_tag(buffer, end):
                splits_link = inside_link(buffer, end, final=final)
                if splits_link is None:
                    return None, False
                if not splits_link:
                    return end, True
            self._undecided_clause = end
        self._undecided_clause = max(self._undecided_clause, limit - _CLAUSE_MARK_CHARS)
        return None, True

    def _may_reach_further(self) -> bool:
        reach = self._reach
        return len(self._buffer) < reach or inside_link(self._buffer, reach, final=False) is None

    def _count_from(self, first: int) -> int:
        """Return the spoken length from `first` on, without the addresses of links and the spaces at the end."""
        buffer, end = self._buffer, self._text_end
        if first != self._count_start:
            self._count_start = self._count_end = first
            self._count = 0
        while (at := self._count_end) < end:
            opened = buffer.find("[", at, end)
            self._count_end = end if opened < 0 else opened
            self._count += spoken_length(buffer[at : self._count_end])
            if opened < 0:
                break
            if link := match_link(buffer, opened):
                is_image = opened > first and buffer[opened - 1] == "!"
                self._count += spoken_length(link["label"]) - is_image
                self._count_end = link.end()
            elif may_become_link(buffer, opened):
                break
            else:
                self._count += 1
                self._count_end += 1
        return self._count + spoken_length(strip_link_addresses(buffer[self._count_end : end]))


def _inside_tag(text: str, at: int) -> bool:
    opened = text.rfind("[", max(0, at - TAG_CHARS), at)
    tag = TAG.match(text, opened) if opened >= 0 else None
    return tag is not None and at < tag.end()
