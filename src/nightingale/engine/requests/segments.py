"""A request's text to the pieces that are spoken one after another, with the pauses between them.

Pauses come from what a piece ends, or from the text itself: `[pause:500ms]` is silence of that length, in
place of the natural one. Other tags in brackets, such as Turbo's [laugh], are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from nightingale.clocks import CLOCKS
from nightingale.errors import EmptyText, TextError, TextTooLong
from nightingale.text.frontend import Frontend
from nightingale.text.sentences import SHORT_CHARS, Ending, Part, paragraphs_of, part_of, sentences_of
from nightingale.text.stops import says_something, spoken_length

PAUSE_MS: Final = {Ending.PARAGRAPH: 300, Ending.SENTENCE: 120, Ending.CLAUSE: 60, Ending.WORD: 60}
"""All on top of the quiet that the model itself leaves at its ends."""
LONGEST_PAUSE_MS: Final = 10_000
MAX_CHARS: Final = 5_000_000
"""Of one request, unless the engine was opened with another limit. War and Peace has 3.2 million; a text
longer than that is a wrong file more often than a book."""

_PAUSE: Final = re.compile(
    r"\[\s*pause\s*:\s*(\d{1,6}(?:\.\d{1,6})?)\s*(ms|s)\s*\]", re.IGNORECASE | re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    text_ids: list[int]
    """Empty for a silence by itself, such as one that the request begins with."""
    pause_samples: int
    """Silence after it; after the last, the model's own, unless the text asks for another."""
    text: str = ""
    """What is spoken, for the guards (how long can it take?) and for people."""


def cut(
    frontend: Frontend,
    text: str,
    language: str | None,
    *,
    split_chars: int | None,
    fill: bool = False,
    max_ids: int | None = None,
    max_chars: int = MAX_CHARS,
    speed: float = 1.0,
    closing_ms: int = 0,
) -> Iterator[Piece]:
    """At least one piece, in order, each made when it is asked for.

    What can be known to be wrong with the text is said by this call, and not by the first piece: too much of
    it, nothing to say, a language the model does not speak, a pause beyond reason.
    """
    check_length(text, max_chars)
    for tag in _PAUSE.finditer(text):
        _pause_ms(tag)
    pieces = pieces_of(
        frontend,
        text,
        language,
        split_chars=split_chars,
        fill=fill,
        max_ids=max_ids,
        speed=speed,
        closing_ms=closing_ms,
    )
    return chain([next(pieces)], pieces)


def check_length(text: str, max_chars: int) -> None:
    if len(text) > max_chars:
        raise TextTooLong(
            "the text is too long for one request",
            got=f"{len(text)} characters",
            allowed=f"at most {max_chars}",
            fix="Split it into several requests, or open the engine with a larger max_chars.",
        )


def pieces_of(
    frontend: Frontend,
    source: str | Iterable[str],
    language: str | None,
    *,
    split_chars: int | None,
    fill: bool = False,
    more: bool = False,
    max_ids: int | None = None,
    speed: float = 1.0,
    closing_ms: int = 0,
) -> Iterator[Piece]:
    """The pieces of a text of any length, each made when it is asked for: a book takes the memory of a page.

    split_chars: how much may be said in one piece, or None for all of it. fill: as much as fits is said in
    one piece, and not one sentence; a short text is then spoken whole, exactly as it was written. more: this
    is a segment, and others follow; its last piece has its pause, and it need not say anything. max_ids: what
    would have more ids (a line of rare signs) is cut further, if the text may be cut at all. speed: of the
    speech; natural pauses follow it, and those that the text asks for do not. closing_ms: the pause after the
    last piece, where the text asks for none.
    """
    held: Piece | None = None  # said, and waiting for the pause after it
    asked_ms: int | None = None  # the pause that the text asks for since then
    most = None if split_chars is None else max_ids
    for part in _parts(frontend, source, language, split_chars, fill, more):
        if isinstance(part, int):
            asked_ms = part + (asked_ms or 0)
            continue
        for piece in _encoded(frontend, part, language, most):
            yield from _followed(held, asked_ms)
            held, asked_ms = replace(piece, pause_samples=round(piece.pause_samples / speed)), None
    if held is not None or more:
        yield from _followed(held, closing_ms if asked_ms is None and not more else asked_ms)
    else:
        raise EmptyText(
            "there is nothing to say",
            got=repr(source[:20]) if isinstance(source, str) else "text without a letter",
            allowed="text with at least one letter or digit that this model can read",
            fix="Pass the sentence to be spoken.",
        )


def parse_pauses(text: str) -> list[str | int]:
    """Stretches of text and, between them, pauses in milliseconds. What is not quite a pause is text."""
    parts: list[str | int] = []
    at = 0
    for tag in _PAUSE.finditer(text):
        if text[at : tag.start()]:
            parts.append(text[at : tag.start()])
        parts.append(_pause_ms(tag))
        at = tag.end()
    if text[at:]:
        parts.append(text[at:])
    return parts


def _followed(piece: Piece | None, asked_ms: int | None) -> Iterator[Piece]:
    """The piece, if there is one, and the silence asked for, in place of its own.

    A long silence comes in parts: thousands of tags in a row are hours, and must not be held at once.
    """
    if asked_ms is None:
        if piece is not None:
            yield piece
        return
    first = piece or Piece(text_ids=[], pause_samples=0)
    yield replace(first, pause_samples=_samples(min(asked_ms, LONGEST_PAUSE_MS)))
    for rest_ms in range(asked_ms - LONGEST_PAUSE_MS, 0, -LONGEST_PAUSE_MS):
        yield Piece(text_ids=[], pause_samples=_samples(min(rest_ms, LONGEST_PAUSE_MS)))


def _pause_ms(tag: re.Match[str]) -> int:
    pause_ms = round(float(tag[1]) * (1000 if tag[2].lower() == "s" else 1))
    if pause_ms > LONGEST_PAUSE_MS:
        raise TextError(
            "a pause is too long",
            got=tag[0],
            allowed=f"at most [pause:{LONGEST_PAUSE_MS // 1000}s]",
            fix="Write several tags in a row for a longer silence.",
        )
    return pause_ms


def _encoded(frontend: Frontend, part: Part, language: str | None, max_ids: int | None) -> Iterator[Piece]:
    """The part as one piece, or as several where its ids are too many for the model's memory."""
    ids = frontend.tokenizer.encode(part.spoken, language)
    if max_ids is None or len(ids) <= max_ids or len(part.text) < 2:
        yield Piece(text_ids=ids, pause_samples=_samples(PAUSE_MS[part.ending]), text=part.spoken)
        return
    halves = list(sentences_of(part.text, (spoken_length(part.text) + 1) // 2, language, join_below=0))
    for number, half in enumerate(halves, start=1):
        whole = replace(half, ending=part.ending) if number == len(halves) else half
        yield from _encoded(frontend, whole, language, max_ids)


def _parts(
    frontend: Frontend,
    source: str | Iterable[str],
    language: str | None,
    split_chars: int | None,
    fill: bool,
    more: bool,
) -> Iterator[Part | int]:
    """Text to be spoken in one piece, written out in words, and pauses in milliseconds."""
    if fill and split_chars is not None and isinstance(source, str) and len(source) <= split_chars:
        # Only now: of a book, the length to say would take as long to count as its pieces to make.
        split_chars = None if spoken_length(source) <= split_chars else split_chars
    if split_chars is None:
        whole = source if isinstance(source, str) else "".join(source)
        blocks: Iterable[tuple[str, bool]] = [(whole, not more)]
    else:
        blocks = paragraphs_of(source, language)
    for block, is_paragraph in blocks:
        stretches = parse_pauses(block)
        for number, stretch in enumerate(stretches, start=1):
            if isinstance(stretch, int):
                yield stretch
                continue
            spoken = frontend.spell_out(stretch) if frontend.spell_out else stretch
            if not says_something(spoken):
                continue
            # Unless a mark ends it, the voice is held before a pause as before a comma.
            goes_on = more or number < len(stretches) or not is_paragraph
            if split_chars is None:
                text = spoken if len(stretches) == 1 else spoken.strip()
                yield part_of(text.rstrip()) if goes_on else Part(text, Ending.PARAGRAPH)
                continue
            below = split_chars if fill else SHORT_CHARS
            for part in sentences_of(spoken, split_chars, language, join_below=below):
                yield part_of(part.text) if goes_on and part.ending is Ending.PARAGRAPH else part


def _samples(pause_ms: int) -> int:
    return pause_ms * CLOCKS.sample_rate_hz // 1000
