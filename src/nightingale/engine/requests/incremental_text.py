"""Incremental segmentation of text that arrives in small parts, such as the tokens of a language model.

The first segment may be a clause, so that audio starts before the first sentence is complete. Later segments
are sentences, which sound better: by then there is audio to play while they arrive. A segment is returned
only when no text that may follow can change it (`3.` waits, since `14` may come), so segments do not depend
on how the text was split into parts.

There is no clock and no thread here: a caller that treats a timeout as the end of a sentence calls `flush`.
"""

from __future__ import annotations

import re
from typing import Final

from nightingale.errors import ConfigError
from nightingale.text.sentences import DEFAULT_SPAN_CHARS, SHORT_CHARS, best_split
from nightingale.text.ssml import end_of_ssml, may_be_ssml
from nightingale.text.stops import (
    CLOSERS,
    LINK,
    LINK_CHARS,
    LOOKAHEAD_CHARS,
    TAG,
    find_sentence_end,
    has_words,
    inside_link,
    spoken_length,
    strip_link_addresses,
)

MIN_FIRST_CHARS: Final = 20
"""Length of the shortest first clause: a model synthesizes a single word badly."""

_CLOSERS: Final = re.escape(CLOSERS)
_CLAUSE: Final = re.compile(
    rf"[,;:،؛][{_CLOSERS}]{{0,8}}(?=\s)|\s[-–—](?=\s)|—(?=[^\W_])|[、，；：](?=[^{_CLOSERS}])"
)
_BLOCK_CHARS: Final = 2048


class IncrementalSegmenter:
    """Split one text into segments while it arrives.

    The segments, joined, are the text as it was pushed, except for characters after the last word (such as
    a final line break).
    """

    def __init__(self, *, max_chars: int = DEFAULT_SPAN_CHARS, language: str | None = None) -> None:
        self._max_chars, self._language = max_chars, language
        self._buffer = ""
        self._is_first, self._ended = True, False

    def push(self, text: str) -> list[str]:
        """Add text and return the segments that are complete now."""
        if self._ended:
            raise ConfigError("this text has ended already", fix="Open a new session for the next text.")
        segments: list[str] = []
        # In blocks: the buffer is copied for every segment, which must not cost a whole book each time.
        for start in range(0, len(text), _BLOCK_CHARS):
            self._buffer += text[start : start + _BLOCK_CHARS]
            segments += self._take(final=False)
        return segments

    def flush(self) -> list[str]:
        """Return everything pushed so far, as if the text ended here. The next segment may be a clause."""
        segments = self._take(final=True)
        if has_words(self._buffer):
            segments.append(self._buffer)
            self._buffer = ""
        self._is_first = True
        return segments

    def end(self) -> list[str]:
        """Return the rest. After this call, `push` is an error and `end` returns nothing."""
        self._ended = True
        return self.flush()

    def _take(self, *, final: bool) -> list[str]:
        segments: list[str] = []
        while (end := self._next_end(final)) is not None:
            segments.append(self._buffer[:end])
            self._buffer = self._buffer[end:]
            self._is_first = False
        return segments

    def _next_end(self, final: bool) -> int | None:
        """Return the end of the next segment, or None while it is not certain."""
        buffer, language = self._buffer, self._language
        if self._is_first and may_be_ssml(buffer):
            return end_of_ssml(buffer)
        min_chars = MIN_FIRST_CHARS if self._is_first else SHORT_CHARS
        end, settled = find_sentence_end(
            buffer, final=final, language=language, at_least=min_chars, lines=True
        )
        if self._is_first:
            clause_end, is_certain = self._clause_end(settled if end is None else end, final)
            if not is_certain:
                return None
            end = clause_end or end
        # Lengths count from the first letter: spaces and marks before it take no time to speak.
        first = next((at for at, character in enumerate(buffer) if character.isalnum()), len(buffer))
        link = LINK.match(buffer, max(0, buffer.rfind("[", 0, first)))
        first = link.start() if link else first
        if end is not None and spoken_length(strip_link_addresses(buffer[first:end])) <= self._max_chars:
            return end
        rest = strip_link_addresses(buffer[first:])
        if spoken_length(rest.rstrip()) <= self._max_chars:
            return None
        # Too long, and no end within reach. Text to come may still close a tag or a link, or extend a mark.
        is_short = len(rest) < self._max_chars + LOOKAHEAD_CHARS
        if not final and (is_short or inside_link(buffer, len(buffer), final=False) is None):
            return None
        window = buffer[first : first + self._max_chars + LINK_CHARS]
        cut = first + best_split(window, self._max_chars, language=language)
        # A link at the start may be longer than its spoken label.
        return max(cut, link.end()) if link and link.start() < cut else cut

    def _clause_end(self, limit: int, final: bool) -> tuple[int | None, bool]:
        """Return the end of the first long enough clause before `limit`, and whether that is certain."""
        buffer = self._buffer
        for match in _CLAUSE.finditer(buffer, 0, limit + 1):
            end = match.end()
            if end > limit:
                break
            if spoken_length(buffer[:end].strip()) < MIN_FIRST_CHARS or not has_words(buffer[:end]):
                continue
            tag = TAG.match(buffer, max(0, buffer.rfind("[", 0, end)))
            if tag and tag.end() > end:
                continue
            splits_link = inside_link(buffer, end, final=final)
            if splits_link is None:
                return None, False
            if not splits_link:
                return end, True
        return None, True
