"""Text that is still being written, to segments that can be spoken already.

A language model gives its answer in tokens of a few letters. The first sound should not wait for the first
full stop, so the first segment may be a clause; from then on there is speech to cover the wait, and segments
are sentences, which sound better. A segment is given out only when nothing that may follow could change it:
`3.` waits to see whether `14` comes. So the segments do not depend on how the text was torn into tokens.

Pure and synchronous: no clock, no thread. Who wants silence to count as an end calls `flush`.
"""

from __future__ import annotations

import re
from typing import Final

from nightingale.errors import ConfigError
from nightingale.text.sentences import BREATH_CHARS, SHORT_CHARS, best_cut
from nightingale.text.stops import (
    CLOSERS,
    LINK,
    LINK_CHARS,
    LOOKAHEAD_CHARS,
    TAG,
    inside_link,
    next_end,
    says_something,
    spoken_length,
    without_addresses,
)

FIRST_CHARS: Final = 20
"""A clause to begin with is no shorter: a lone word gives a model little to hold on to."""

_IN_CLOSERS: Final = f"[{re.escape(CLOSERS)}]{{0,8}}"
_CLAUSE: Final = re.compile(
    rf"[,;:،؛]{_IN_CLOSERS}(?=\s)|\s[-–—](?=\s)|—(?=[^\W_])|[、，；：](?=[^{re.escape(CLOSERS)}])"
)
_TAG_CHARS: Final = 34
_BLOCK_CHARS: Final = 2048
_OPEN_TAG: Final = re.compile(r"\[[^\[\]\n]{0,32}$")


class IncomingText:
    """One speaker's text on its way in. Joined, the segments are the text as it was pushed.

    Only what has nothing to say at the very end (a last line break) is left out.
    """

    def __init__(
        self, *, max_chars: int = BREATH_CHARS, first_chars: int = FIRST_CHARS, language: str | None = None
    ) -> None:
        self._max_chars, self._first_chars, self._language = max_chars, first_chars, language
        self._held = ""
        self._first, self._ended = True, False

    def push(self, text: str) -> list[str]:
        """More text; gives the segments that are sure now."""
        if self._ended:
            raise ConfigError(
                "this text has ended already",
                got="more text after end()",
                allowed="push and flush until end() is called",
                fix="Open a new session for the next text.",
            )
        segments: list[str] = []
        # Block by block: a book pushed at once is not copied anew for each of its sentences.
        for start in range(0, len(text), _BLOCK_CHARS):
            self._held += text[start : start + _BLOCK_CHARS]
            segments += self._take(final=False)
        return segments

    def flush(self) -> list[str]:
        """Everything pushed so far, as if the text ended here. The next segment may be a clause again."""
        segments = self._take(final=True)
        if says_something(self._held):
            segments.append(self._held)
            self._held = ""
        self._first = True
        return segments

    def end(self) -> list[str]:
        """The rest. Nothing may be pushed after it; asking twice is harmless."""
        self._ended = True
        return self.flush()

    def _take(self, *, final: bool) -> list[str]:
        segments: list[str] = []
        while (end := self._next(final)) is not None:
            segments.append(self._held[:end])
            self._held = self._held[end:]
            self._first = False
        return segments

    def _next(self, final: bool) -> int | None:
        """Where the next segment ends, if that is sure."""
        held, language = self._held, self._language
        at_least = self._first_chars if self._first else SHORT_CHARS
        end, settled = next_end(held, final=final, language=language, at_least=at_least, lines=True)
        if self._first:
            clause_end, sure = self._clause_end(settled if end is None else end, final)
            if not sure:
                return None
            end = clause_end or end
        # Lengths count from the first letter: the spaces and marks before it cost no breath.
        first = next((at for at, character in enumerate(held) if character.isalnum()), len(held))
        link = LINK.match(held, max(0, held.rfind("[", 0, first)))
        first = link.start() if link else first
        if end is not None and spoken_length(without_addresses(held[first:end])) <= self._max_chars:
            return end
        rest = without_addresses(held[first:])
        if spoken_length(rest.rstrip()) <= self._max_chars:
            return None
        # Too long, and no end in reach. What follows may still close a tag or a link, or lengthen a mark.
        short = len(rest) < self._max_chars + LOOKAHEAD_CHARS
        if not final and (short or inside_link(held, len(held), final=False) is None):
            return None
        cut = first + best_cut(
            held[first : first + self._max_chars + LINK_CHARS], self._max_chars, language=language
        )
        # A link to begin with may be longer than it is to say.
        return max(cut, link.end()) if link and link.start() < cut else cut

    def _clause_end(self, limit: int, final: bool) -> tuple[int | None, bool]:
        """The end of the first clause that lies before `limit` and is long enough; and whether it is sure."""
        held = self._held
        for match in _CLAUSE.finditer(held, 0, limit + 1):
            end = match.end()
            if end > limit:
                break
            if spoken_length(held[:end].strip()) < self._first_chars or not says_something(held[:end]):
                continue
            opened = held.rfind("[", max(0, end - _TAG_CHARS), end)
            if opened >= 0 and "]" not in held[opened:end]:
                if not final and _OPEN_TAG.match(held, opened):
                    return None, False
                if TAG.match(held, opened):
                    continue
            torn = inside_link(held, end, final=final)
            if torn is None:
                return None, False
            if not torn:
                return end, True
        return None, True
