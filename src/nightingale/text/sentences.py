"""Long text to pieces that can be spoken in one breath.

A small model has heard utterances of some twenty seconds at most; beyond that it loses its place. So text is
cut where a reader would pause: after sentences first; inside a long sentence after a semicolon or colon, then
after a comma, then between words; and only where there is nothing else, inside a word. Very short sentences
join their neighbours, because a lone word gives a model little to hold on to.

Nothing is held but the sentence at hand, and no decision looks further ahead than a link is long: a book
costs the memory of a page, and where a text is cut does not depend on the blocks it arrives in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final
from unicodedata import category

from nightingale.text.stops import (
    BREAK,
    CLOSERS,
    LINK,
    LINK_CHARS,
    LOOKAHEAD_CHARS,
    STOPS,
    TAG,
    WIDE_STOPS,
    is_abbreviation,
    next_end,
    says_something,
    spoken_length,
)

BREATH_CHARS: Final = 280
"""For the official families, whose speech garbles beyond 300 to 350 characters or 40 s: about 16 s of reading
at 210 words a minute, 25 s of slow reading."""
SHORT_CHARS: Final = 24
"""A sentence shorter than this joins the next one, if both fit."""
CLAUSE_MARKS: Final = ",;:،؛、，；：-–—"

_BLOCK_CHARS: Final = 2048
_LONGEST_IN_PIECES: Final = 8
"""A sentence that goes on for this many full pieces is cut without waiting for its end."""
_IN_CLOSERS: Final = f"[{re.escape(CLOSERS)}]{{0,8}}"
_STOP: Final = re.compile(
    rf"[{re.escape(STOPS)}]{{1,16}}{_IN_CLOSERS}(?=\s)|[{re.escape(WIDE_STOPS)}]{{1,16}}{_IN_CLOSERS}"
)
_CUTS: Final = (
    _STOP,
    re.compile(rf"[;:؛]{_IN_CLOSERS}(?=\s)|[；：]|\s[-–—](?=\s)|—"),
    re.compile(rf"[,،]{_IN_CLOSERS}(?=\s)|[、，]{_IN_CLOSERS}"),
    re.compile(r"(?=\s)"),
)
"""Where a long sentence may be cut, best first; the cut is at the end of the match."""


class Ending(Enum):
    """What a reader comes to at the end of a part."""

    PARAGRAPH = "paragraph"
    SENTENCE = "sentence"
    CLAUSE = "clause"
    WORD = "word"


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of text to be spoken in one breath, as it was written but for its spaces."""

    text: str
    ending: Ending

    @property
    def spoken(self) -> str:
        """With a comma where the sentence goes on: without a mark the voice would fall as at its end."""
        return self.text + "," if self.ending is Ending.WORD and self.text[-1:].isalnum() else self.text


def split(text: str, max_chars: int, language: str | None = None) -> list[str]:
    """`text` in pieces of at most `max_chars`, each with something to say."""
    return [part.text for part in sentences_of(text, max_chars, language)]


def sentences_of(
    source: str | Iterable[str],
    max_chars: int,
    language: str | None = None,
    *,
    join_below: int = SHORT_CHARS,
) -> Iterator[Part]:
    """The parts of a text, as soon as each is sure. `max_chars` counts as `spoken_length` does.

    Joined, they are the text, but for spaces and for marks without a word (a rule of stars between chapters).
    A part shorter than `join_below` joins its neighbour; `join_below=max_chars` fills every breath.
    """
    last: Part | None = None
    for raw in _raw_sentences(source, max_chars, language):
        *before, body = BREAK.split(raw)
        if before and last is not None:
            left = " ".join(before[0].split())  # marks without a word, behind the last sentence
            if left and _belong_together(last.text, left, max_chars, join_below):
                last = part_of(last.text + " " + left)
            yield replace(last, ending=Ending.PARAGRAPH)
            last = None
        for text in _fit(" ".join(body.split()), max_chars, language):
            if last is not None:
                if _belong_together(last.text, text, max_chars, join_below):
                    last = part_of(last.text + _glue(last.text) + text)
                    continue
                if not says_something(text):
                    continue
                yield last
            last = part_of(text) if says_something(text) else None
    if last is not None:
        yield replace(last, ending=Ending.PARAGRAPH)


def paragraphs_of(source: str | Iterable[str], language: str | None = None) -> Iterator[tuple[str, bool]]:
    """(text, whether the paragraph ends with it): whole paragraphs, long ones in runs of sentences.

    For work that needs more of a text than one sentence, such as writing out its numbers.
    """
    held = ""
    for raw in _raw_sentences(source, _BLOCK_CHARS // _LONGEST_IN_PIECES, language):
        if held and BREAK.search(raw, 0, len(raw) - len(raw.lstrip())):
            yield held, True
            held = ""
        elif len(held) + len(raw) > _BLOCK_CHARS:
            yield held, False
            held = ""
        held += raw
    if held:
        yield held, True


def ends_sentence(piece: str) -> bool:
    """Whether a reader would drop the voice at the end of it."""
    return piece.rstrip(CLOSERS).endswith((*STOPS, *WIDE_STOPS))


def best_cut(text: str, max_chars: int, *, ideal: float | None = None, language: str | None = None) -> int:
    """Where to cut a text that is too long: at its best mark, near `ideal` or else as late as possible."""
    limit = _reach(text, max_chars)
    tags = [tag.span() for tag in TAG.finditer(text, 0, limit + LOOKAHEAD_CHARS)]
    if "](" in text:
        tags = sorted([*tags, *(link.span() for link in LINK.finditer(text, 0, limit + LINK_CHARS))])
    aim = limit if ideal is None else ideal
    for pattern in _CUTS:
        found = [
            match.end()
            for match in pattern.finditer(text, 0, limit + 2)
            if limit // 4 < match.end() <= limit
            and not (pattern is _STOP and is_abbreviation(text, match, language))
            and not any(start < match.end() < end for start, end in tags)
        ]
        if found:
            return min(found, key=lambda end: abs(end - aim))
    tag_start = next((start for start, end in tags if start < limit < end), 0)
    return tag_start or _between_letters(text, limit)


def _between_letters(text: str, at: int) -> int:
    """`at`, or as far before it as keeps a letter and the signs upon it together."""
    for before in range(min(at, len(text) - 1), max(at - 8, 1), -1):
        # M: vowel signs and accents; Cf: joiners.
        if not (
            category(text[before]).startswith("M") or "Cf" in map(category, text[before - 1 : before + 1])
        ):
            return before
    return at


def _reach(text: str, max_chars: int) -> int:
    """How many characters of the text are no longer to say than `max_chars`; at least one."""
    head = text[:max_chars]
    if head.isascii():
        return len(head)
    length = 0
    for index, character in enumerate(head):
        length += spoken_length(character)
        if length > max_chars:
            return max(1, index)
    return len(head)


def _fit(sentence: str, max_chars: int, language: str | None) -> list[str]:
    """A sentence in parts of about equal length, none longer than `max_chars`."""
    parts: list[str] = []
    while (length := spoken_length(sentence)) > max_chars and len(sentence) > 1:
        ideal = len(sentence) / math.ceil(length / max_chars)
        at = best_cut(sentence, max_chars, ideal=ideal, language=language)
        parts.append(sentence[:at].strip())
        sentence = sentence[at:].strip()
    return [*parts, sentence] if sentence else parts


def _belong_together(one: str, two: str, max_chars: int, join_below: int) -> bool:
    if spoken_length(one) + 1 + spoken_length(two) > max_chars:
        return False
    return not says_something(two) or min(spoken_length(one), spoken_length(two)) < join_below


def _glue(text: str) -> str:
    return "" if text.rstrip(CLOSERS)[-1:] in "。！？｡" else " "


def part_of(text: str) -> Part:
    """A part that ends what its last mark says."""
    if ends_sentence(text):
        return Part(text, Ending.SENTENCE)
    return Part(text, Ending.CLAUSE if text.rstrip(CLOSERS).endswith((*CLAUSE_MARKS,)) else Ending.WORD)


def _raw_sentences(source: str | Iterable[str], max_chars: int, language: str | None) -> Iterator[str]:
    """Slices of the source that together are all of it; breaks between paragraphs lead the slice after."""
    longest = _LONGEST_IN_PIECES * max_chars
    held, at = "", 0
    for block, final in _blocks(source):
        held, at = held[at:] + block, 0
        while True:
            end, _ = next_end(held, at, final=final, language=language)
            if end is None or end - at > longest:
                rest = len(held) - at
                if rest <= longest if final else rest < longest + LINK_CHARS:
                    break
                window = held[at : at + longest + LINK_CHARS]
                end = at + best_cut(window, longest, language=language)
            yield held[at:end]
            at = end
    if held[at:]:
        yield held[at:]


def _blocks(source: str | Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Blocks of a fair size and, last, an empty one."""
    if isinstance(source, str):
        for start in range(0, len(source), _BLOCK_CHARS):
            yield source[start : start + _BLOCK_CHARS], False
    else:
        held: list[str] = []
        size = 0
        for item in source:
            held.append(item)
            size += len(item)
            if size >= _BLOCK_CHARS:
                yield "".join(held), False
                held, size = [], 0
        yield "".join(held), False
    yield "", True
