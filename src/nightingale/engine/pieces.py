"""A request's text to the pieces that are spoken one after another, with the pauses between them.

Pauses come from what a piece ends, or from the text itself: `[pause:500ms]` is silence of that length, in
place of the natural one. Other tags in brackets, such as Turbo's [laugh], are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from nightingale.clocks import CLOCKS
from nightingale.errors import EmptyText, TextError, TextTooLong
from nightingale.text.frontend import Frontend
from nightingale.text.sentences import SHORT_CHARS, Ending, Part, paragraphs_of, part_of, sentences_of
from nightingale.text.stops import says_something, spoken_length

PAUSE_MS: Final = {Ending.PARAGRAPH: 300, Ending.SENTENCE: 120, Ending.CLAUSE: 60, Ending.WORD: 60}
"""All on top of the quiet that the model itself leaves at its ends."""
LONGEST_PAUSE_MS: Final = 10_000

_PAUSE: Final = re.compile(
    r"\[\s*pause\s*:\s*(\d{1,6}(?:\.\d{1,6})?)\s*(ms|s)\s*\]", re.IGNORECASE | re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    text_ids: list[int]
    """Empty for a pause that the request begins with: nothing is spoken, only the silence is heard."""
    pause_samples: int
    """Silence after it; none after the last, unless the text asks for it."""
    text: str = ""
    """What is spoken, for the guards (how long can it take?) and for people."""


def cut(
    frontend: Frontend, text: str, language: str | None, *, split_chars: int | None, fill: bool = False
) -> list[Piece]:
    """At least one piece, in order; text that is empty or longer than the frontend allows is refused."""
    if len(text) > frontend.max_chars:
        raise TextTooLong(
            "the text is too long for one request",
            got=f"{len(text)} characters",
            allowed=f"at most {frontend.max_chars}",
            fix="Split it into several requests.",
        )
    return list(pieces_of(frontend, text, language, split_chars=split_chars, fill=fill))


def pieces_of(
    frontend: Frontend,
    source: str | Iterable[str],
    language: str | None,
    *,
    split_chars: int | None,
    fill: bool = False,
    more: bool = False,
) -> Iterator[Piece]:
    """The pieces of a text of any length, each made when it is asked for: a book takes the memory of a page.

    split_chars: how much may be said in one piece, or None for all of it. fill: as much as fits is said in
    one piece, and not one sentence; a short text is then spoken whole, exactly as it was written. more: this
    is a segment, and others follow; its last piece has its pause, and it need not say anything.
    """
    held: Piece | None = None  # said, and waiting for the pause after it
    asked_ms: int | None = None  # the pause that the text asks for since then
    for part in _parts(frontend, source, language, split_chars, fill, more):
        if isinstance(part, int):
            asked_ms = part + (asked_ms or 0)
            continue
        if held is not None:
            yield held if asked_ms is None else replace(held, pause_samples=_samples(asked_ms))
        elif asked_ms is not None:
            yield Piece(text_ids=[], pause_samples=_samples(asked_ms))
        held = Piece(
            text_ids=frontend.tokenizer.encode(part.spoken, language),
            pause_samples=_samples(PAUSE_MS[part.ending]),
            text=part.spoken,
        )
        asked_ms = None
    if held is not None:
        natural = held.pause_samples if more else 0
        yield replace(held, pause_samples=natural if asked_ms is None else _samples(asked_ms))
    elif more and asked_ms is not None:
        yield Piece(text_ids=[], pause_samples=_samples(asked_ms))
    elif not more:
        raise EmptyText(
            "there is nothing to say",
            got=repr(source[:20]) if isinstance(source, str) else "text without a letter",
            allowed="text with at least one letter or digit",
            fix="Pass the sentence to be spoken.",
        )


def parse_pauses(text: str) -> list[str | int]:
    """Stretches of text and, between them, pauses in milliseconds. What is not quite a pause is text."""
    parts: list[str | int] = []
    at = 0
    for tag in _PAUSE.finditer(text):
        pause_ms = round(float(tag[1]) * (1000 if tag[2].lower() == "s" else 1))
        if pause_ms > LONGEST_PAUSE_MS:
            raise TextError(
                "a pause is too long",
                got=tag[0],
                allowed=f"at most [pause:{LONGEST_PAUSE_MS // 1000}s]",
                fix="Write several tags in a row for a longer silence.",
            )
        if text[at : tag.start()]:
            parts.append(text[at : tag.start()])
        parts.append(pause_ms)
        at = tag.end()
    if text[at:]:
        parts.append(text[at:])
    return parts


def _parts(
    frontend: Frontend,
    source: str | Iterable[str],
    language: str | None,
    split_chars: int | None,
    fill: bool,
    more: bool,
) -> Iterator[Part | int]:
    """Text to be spoken in one piece, written out in words, and pauses in milliseconds."""
    if fill and split_chars is not None and isinstance(source, str) and spoken_length(source) <= split_chars:
        split_chars = None
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
