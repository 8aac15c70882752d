"""Splitting of long text into spans that a model can speak at once.

A small model is trained on utterances of at most some twenty seconds and fails on longer ones. Text is split
where a reader would pause: after sentences; inside a long sentence after a semicolon or colon, then after a
comma, then between words; inside a word only if there is nothing else. Very short sentences are joined with
their neighbours, because models speak single words badly.

Only the current sentence is in memory, and no decision looks further ahead than the length of a link: a book
takes the memory of a page, and the splits do not depend on the blocks in which the text arrives.
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
    find_sentence_end,
    has_words,
    is_abbreviation,
    spoken_length,
)

DEFAULT_SPAN_CHARS: Final = 280
"""The span length of the official models, whose speech degrades beyond 300 to 350 characters or 40 s: about
16 s at 210 words a minute, 25 s of slow speech."""
SHORT_CHARS: Final = 24
"""A sentence shorter than this is joined with the next one, if both fit."""
FIRST_SPAN_CHARS: Final = 120
"""A first sentence longer than this is split after a clause where audio should start soon: about 7 s of speech."""
CLAUSE_MARKS: Final = ",;:،؛、，；：-–—"

_BLOCK_CHARS: Final = 2048
_MAX_SENTENCE_SPANS: Final = 8
"""A sentence longer than this many spans is split without waiting for its end."""
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
"""Patterns of split positions inside a long sentence, best first; the split is at the end of the match."""


class Ending(Enum):
    """The text unit that ends with a span."""

    PARAGRAPH = "paragraph"
    SENTENCE = "sentence"
    CLAUSE = "clause"
    WORD = "word"


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Text to be spoken at once, as written except for its spaces."""

    text: str
    ending: Ending

    @property
    def spoken(self) -> str:
        """The text, with a comma where the sentence continues: otherwise it would sound like its end."""
        return self.text + "," if self.ending is Ending.WORD and self.text[-1:].isalnum() else self.text


def split_sentences(
    source: str | Iterable[str],
    max_chars: int,
    language: str | None = None,
    *,
    join_below: int = SHORT_CHARS,
) -> Iterator[TextSpan]:
    """Yield the spans of a text as soon as each is decided.

    Joined, they are the text, except for spaces and for marks without a word (a line of stars between
    chapters).

    Args:
        source: The text, or blocks of it.
        max_chars: The largest length of a span, counted by `spoken_length`.
        language: A language code, for its abbreviations.
        join_below: A shorter span is joined with its neighbour; `max_chars` fills every span.
    """
    last: TextSpan | None = None
    for raw in _raw_sentences(source, max_chars, language):
        *before, body = BREAK.split(raw)
        if before and last is not None:
            marks = " ".join(before[0].split())  # marks without a word, after the last sentence
            if marks and _should_join(last.text, marks, max_chars, join_below):
                last = span_of(last.text + " " + marks)
            yield replace(last, ending=Ending.PARAGRAPH)
            last = None
        for text in _fit(" ".join(body.split()), max_chars, language):
            if last is not None:
                if _should_join(last.text, text, max_chars, join_below):
                    last = span_of(last.text + _separator(last.text) + text)
                    continue
                if not has_words(text):
                    continue
                yield last
            last = span_of(text) if has_words(text) else None
    if last is not None:
        yield replace(last, ending=Ending.PARAGRAPH)


def grow_spans(
    spans: Iterable[TextSpan | int], max_chars: int, language: str | None = None
) -> Iterator[TextSpan | int]:
    """Join sentences so that audio starts soon and long texts have few joints.

    The first span stays as it is, or is split after a clause if it is long. Each later one holds as many of the
    following sentences as fit into about twice the length of the span before it, and into `max_chars`: so it can
    be synthesized while that one plays. A sentence is not split for this. Spans that end a paragraph are not joined
    with the next one, and pauses (integers) are kept where they are.
    """
    last: TextSpan | None = None
    limit: int | None = None
    for part in spans:
        for span in _shorten(part, language) if limit is None and isinstance(part, TextSpan) else [part]:
            limit = 0 if limit is None else limit
            if last is not None:
                if isinstance(span, TextSpan) and _can_append(last, span, limit):
                    last = TextSpan(last.text + _separator(last.text) + span.text, span.ending)
                    continue
                limit = min(2 * spoken_length(last.text) + SHORT_CHARS, max_chars)
                yield last
            last = span if isinstance(span, TextSpan) else None
            if isinstance(span, int):
                yield span
    if last is not None:
        yield last


def _can_append(last: TextSpan, span: TextSpan, max_chars: int) -> bool:
    if last.ending is Ending.PARAGRAPH:
        return False
    return spoken_length(last.text) + 1 + spoken_length(span.text) <= max_chars


def _shorten(span: TextSpan, language: str | None) -> list[TextSpan]:
    """Return a span, or two if it is long and has a mark where a reader would pause."""
    if spoken_length(span.text) <= FIRST_SPAN_CHARS:
        return [span]
    text = span.text
    at = _split_at_mark(text, FIRST_SPAN_CHARS, _CUTS[:-1], language, ideal=len(text) / 2)
    if at is None:
        return [span]
    return [span_of(text[:at].strip()), TextSpan(text[at:].strip(), span.ending)]


def split_paragraphs(source: str | Iterable[str], language: str | None = None) -> Iterator[tuple[str, bool]]:
    """Yield (text, whether it ends a paragraph): whole paragraphs, long ones in runs of sentences.

    Normalization needs more context than one sentence.
    """
    held = ""
    for raw in _raw_sentences(source, _BLOCK_CHARS // _MAX_SENTENCE_SPANS, language):
        if held and BREAK.search(raw, 0, len(raw) - len(raw.lstrip())):
            yield held, True
            held = ""
        elif len(held) + len(raw) > _BLOCK_CHARS:
            yield held, False
            held = ""
        held += raw
    if held:
        yield held, True


def ends_sentence(text: str) -> bool:
    return text.rstrip(CLOSERS).endswith((*STOPS, *WIDE_STOPS))


def best_split(text: str, max_chars: int, *, ideal: float | None = None, language: str | None = None) -> int:
    """Return where to split a text that is too long: at its best mark, near `ideal` or as late as it can."""
    at = _split_at_mark(text, max_chars, _CUTS, language, ideal)
    if at is not None:
        return at
    limit = _fitting_chars(text, max_chars)
    tag_start = next((start for start, end in _tags(text, limit) if start < limit < end), 0)
    return tag_start or _between_letters(text, limit)


def _tags(text: str, limit: int) -> list[tuple[int, int]]:
    """Return where tags and links begin and end that must not be split."""
    tags = [tag.span() for tag in TAG.finditer(text, 0, limit + LOOKAHEAD_CHARS)]
    if "](" in text:
        tags = sorted([*tags, *(link.span() for link in LINK.finditer(text, 0, limit + LINK_CHARS))])
    return tags


def _split_at_mark(
    text: str,
    max_chars: int,
    patterns: Iterable[re.Pattern[str]],
    language: str | None,
    ideal: float | None = None,
) -> int | None:
    """Return the best split position of the first pattern that has any; None if none has."""
    limit = _fitting_chars(text, max_chars)
    tags, aim = _tags(text, limit), limit if ideal is None else ideal
    for pattern in patterns:
        found = [
            match.end()
            for match in pattern.finditer(text, 0, limit + 2)
            if limit // 4 < match.end() <= limit
            and not (pattern is _STOP and is_abbreviation(text, match, language))
            and not any(start < match.end() < end for start, end in tags)
        ]
        if found:
            return min(found, key=lambda end: abs(end - aim))
    return None


def _between_letters(text: str, at: int) -> int:
    """Return `at`, or a position before it that keeps a letter and its combining marks together."""
    for before in range(min(at, len(text) - 1), max(at - 8, 1), -1):
        # M: vowel signs and accents; Cf: joiners.
        if not (
            category(text[before]).startswith("M") or "Cf" in map(category, text[before - 1 : before + 1])
        ):
            return before
    return at


def _fitting_chars(text: str, max_chars: int) -> int:
    """Return how many characters have a spoken length of at most `max_chars`; at least one."""
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
    """Split a sentence into parts of about equal length, none longer than `max_chars`."""
    parts: list[str] = []
    while (length := spoken_length(sentence)) > max_chars and len(sentence) > 1:
        ideal = len(sentence) / math.ceil(length / max_chars)
        at = best_split(sentence, max_chars, ideal=ideal, language=language)
        parts.append(sentence[:at].strip())
        sentence = sentence[at:].strip()
    return [*parts, sentence] if sentence else parts


def _should_join(one: str, two: str, max_chars: int, join_below: int) -> bool:
    if spoken_length(one) + 1 + spoken_length(two) > max_chars:
        return False
    return not has_words(two) or min(spoken_length(one), spoken_length(two)) < join_below


def _separator(text: str) -> str:
    return "" if text.rstrip(CLOSERS)[-1:] in "。！？｡" else " "


def span_of(text: str) -> TextSpan:
    """Return a span whose ending is that of its last mark."""
    if ends_sentence(text):
        return TextSpan(text, Ending.SENTENCE)
    return TextSpan(text, Ending.CLAUSE if text.rstrip(CLOSERS).endswith((*CLAUSE_MARKS,)) else Ending.WORD)


def _raw_sentences(source: str | Iterable[str], max_chars: int, language: str | None) -> Iterator[str]:
    """Yield consecutive slices of the source; a paragraph break is at the start of a slice."""
    longest = _MAX_SENTENCE_SPANS * max_chars
    held, at = "", 0
    for block, final in _blocks(source):
        held, at = held[at:] + block, 0
        while True:
            end, _ = find_sentence_end(held, at, final=final, language=language)
            if end is None or end - at > longest:
                rest = len(held) - at
                if rest <= longest if final else rest < longest + LINK_CHARS:
                    break
                window = held[at : at + longest + LINK_CHARS]
                end = at + best_split(window, longest, language=language)
            yield held[at:end]
            at = end
    if held[at:]:
        yield held[at:]


def _blocks(source: str | Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield blocks of about 2048 characters and then a final empty one."""
    held, items = "", source
    if isinstance(source, str):
        items = (source[start : start + _BLOCK_CHARS] for start in range(0, len(source), _BLOCK_CHARS))
    for item in items:
        held += item
        if len(held) >= _BLOCK_CHARS:
            yield held, False
            held = ""
    yield held, False
    yield "", True
