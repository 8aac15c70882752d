"""Text segments that are synthesized one after another, with pauses: how a text is split, and their queue.

The pause after a segment depends on what the segment ends (a paragraph, a sentence, a clause). A tag such as
`[pause:500ms]` in the text replaces it. Other tags in brackets, such as Turbo's [laugh], are text.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Final, Required, TypedDict, Unpack

from nightingale.clocks import CLOCKS
from nightingale.errors import EmptyText, TextError, TextTooLong
from nightingale.text.frontend import Frontend
from nightingale.text.normalized_text import NormalizedText
from nightingale.text.sentences import (
    SHORT_CHARS,
    Ending,
    TextSpan,
    grow_spans,
    span_of,
    split_paragraphs,
    split_sentences,
)
from nightingale.text.source_words import SegmentSource
from nightingale.text.stops import has_words, spoken_length
from nightingale.voices.voice import Voice

PAUSE_MS: Final = {Ending.PARAGRAPH: 300, Ending.SENTENCE: 120, Ending.CLAUSE: 60, Ending.WORD: 60}
"""Silence added to what the model itself generates at the end of a segment."""
MAX_PAUSE_MS: Final = 10_000
MAX_CHARS: Final = 5_000_000
"""Default limit of one request. War and Peace has 3.2 million characters; a longer text is a wrong file more
often than a book."""

_PAUSE: Final = re.compile(r"\[\s*pause\s*:(?P<length>[^\[\]\n]{0,32})\]", re.IGNORECASE)
_LENGTH: Final = re.compile(r"\s*(\d{1,6}(?:\.\d{1,6})?)\s*(ms|s)\s*", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSegment:
    """Text that is synthesized in one go, and the silence after it."""

    text_ids: list[int] = field(default_factory=list)
    """Empty for silence alone, such as a pause at the beginning of a request."""
    pause_samples: int
    text: str = ""
    """The text as it is spoken: for guards, which estimate its duration from it, and for people."""
    voice: Voice | None = None
    """The voice of this segment; None is the request's."""
    speed: float | None = None
    """The speed of this segment; None is the request's."""
    source: SegmentSource | None = None
    """The author's words, if they are to be timed."""

    @property
    def is_pause(self) -> bool:
        """True for silence alone."""
        return not self.text_ids


class SegmentQueue:
    """The segments of a request, between the thread that adds text and the worker thread, which takes them.

    It needs no lock: the operations of a deque are atomic, and only the worker thread takes segments.
    """

    def __init__(self, known: Iterator[TextSegment] | None = None) -> None:
        """Take segments from `known`, or else from `add`."""
        self._known = known or iter(())
        self._added: deque[TextSegment] = deque()
        self.add = self._added.append
        self.closed = known is not None
        """True if no more segments will be added."""

    @property
    def waiting(self) -> bool:
        """True if `next` can return a segment, or the final None."""
        return bool(self._added) or self.closed

    def next(self) -> TextSegment | None:
        """Return the next segment; None if there is none yet or, once closed, none left."""
        segment = next(self._known, None)
        if segment is None and self._added:
            segment = self._added.popleft()
        return segment


class SegmentOptions(TypedDict, total=False):
    """Options of `segment_text`."""

    split_chars: Required[int | None]
    """Length of the longest segment, in letters of an alphabet; None for a single segment."""
    fill: bool
    """Put as many sentences into a segment as fit. A text that fits as a whole stays as it is written."""
    short_first: bool
    """With `fill`, begin with the first sentence and let later segments grow (`grow_spans`)."""
    continues: bool
    """More text follows. The last segment then keeps its natural pause, and none is no error."""
    max_ids: int | None
    """Split a segment of more ids (a line of rare characters) further, if the text may be split."""
    max_chars: int
    """Length of the longest text; by default MAX_CHARS."""
    speed: float
    """Speech rate. Natural pauses follow it; pauses that the text asks for do not."""
    closing_ms: int
    """Pause after the last segment, unless the text asks for another."""
    on_normalized: Callable[[NormalizedText], None] | None
    """Called with each normalized part of the text, before the segments made of it."""


def segment_text(
    frontend: Frontend, source: str | Iterable[str], language: str | None, **options: Unpack[SegmentOptions]
) -> Iterator[TextSegment]:
    """Split a text of any length into segments, each made when the iterator reaches it.

    Args:
        frontend: Text normalizer and tokenizer of the model.
        source: The text, or an iterable of parts of it; `language` is its code.
        options: How it is split.

    Raises:
        TextError: The text is empty or too long, has an impossible pause, or the model does not support its
            language. A string is checked by this call, not when the first segment is taken.
    """
    continues = options.get("continues", False)
    if isinstance(source, str):
        check_length(len(source), options.get("max_chars", MAX_CHARS))
        for tag in _PAUSE.finditer(source):
            _pause_ms(tag)
    segments = _merge_pauses(
        chain.from_iterable(
            [part] if isinstance(part, int) else _encode(frontend, part, language, options)
            for part in _parts(frontend, source, language, options)
        ),
        closing_ms=None if continues else options.get("closing_ms", 0),
    )
    first = list(islice(segments, 1))
    if not first and not continues:
        raise EmptyText(
            "there is nothing to say",
            got=repr(source[:20]) if isinstance(source, str) else "text without a letter",
            allowed="text with at least one letter or digit that this model can read",
            fix="Pass the sentence to be spoken.",
        )
    return chain(first, segments)


def check_length(chars: int, max_chars: int, *, cause: str = "") -> None:
    """Raise TextTooLong if a text of so many characters is longer than one request may be.

    cause: What made it so long, such as " with the respellings of the lexicon".
    """
    if chars > max_chars:
        raise TextTooLong(
            "the text is too long for one request",
            got=f"{chars} characters{cause}",
            allowed=f"at most {max_chars}",
            fix="Split it into several requests, or open the engine with a larger max_chars.",
        )


def parse_pauses(text: str) -> list[NormalizedText | int]:
    """Return text and pauses in milliseconds, in order. Raise TextError for a pause without a valid length."""
    whole, parts, end = NormalizedText.of(text), list[NormalizedText | int](), 0
    for tag in _PAUSE.finditer(text):
        parts += [whole.cut(end, tag.start()), _pause_ms(tag)]
        end = tag.end()
    return [part for part in (*parts, whole.cut(end, len(whole))) if part != ""]


def _merge_pauses(items: Iterable[TextSegment | int], *, closing_ms: int | None) -> Iterator[TextSegment]:
    """Replace the pauses of segments by those that follow them, in milliseconds, and by the closing pause."""
    segment: TextSegment | None = None
    pause_ms: int | None = None
    for item in items:
        if isinstance(item, int):
            pause_ms = item + (pause_ms or 0)
            continue
        yield from _with_pause(segment, pause_ms)
        segment, pause_ms = item, None
    if segment is not None or closing_ms is None:
        yield from _with_pause(segment, closing_ms if pause_ms is None else pause_ms)


def _with_pause(segment: TextSegment | None, pause_ms: int | None) -> Iterator[TextSegment]:
    """Yield a segment with this pause, or silence alone. A long pause is split, to bound its memory."""
    if pause_ms is None:
        if segment is not None:
            yield segment
        return
    for done_ms in range(0, max(pause_ms, 1), MAX_PAUSE_MS):
        samples = _samples(min(pause_ms - done_ms, MAX_PAUSE_MS))
        yield replace(segment or TextSegment(pause_samples=0), pause_samples=samples)
        segment = None


def _pause_ms(tag: re.Match[str]) -> int:
    length = _LENGTH.fullmatch(tag["length"])
    pause_ms = round(float(length[1]) * (1000 if length[2].lower() == "s" else 1)) if length else None
    if pause_ms is None or pause_ms > MAX_PAUSE_MS:
        raise TextError(
            "a pause has no valid length" if pause_ms is None else "a pause is too long",
            got=tag[0],
            allowed=f"at most [pause:{MAX_PAUSE_MS // 1000}s], in ms or s",
            fix="Write several tags in a row for a longer silence.",
        )
    return pause_ms


def _encode(
    frontend: Frontend, part: TextSpan, language: str | None, options: SegmentOptions
) -> Iterator[TextSegment]:
    """Yield the part as one segment, or as several if it has more than `max_ids` ids."""
    ids = frontend.tokenizer.encode(part.spoken, language)
    max_ids = None if options["split_chars"] is None else options.get("max_ids")
    if max_ids is None or len(ids) <= max_ids or len(part.text) < 2:
        pause_samples = round(_samples(PAUSE_MS[part.ending]) / options.get("speed", 1.0))
        yield TextSegment(text_ids=ids, pause_samples=pause_samples, text=part.spoken)
        return
    *first, last = split_sentences(part.text, (spoken_length(part.text) + 1) // 2, language, join_below=0)
    for half in (*first, replace(last, ending=part.ending)):
        yield from _encode(frontend, half, language, options)


def _parts(
    frontend: Frontend, source: str | Iterable[str], language: str | None, options: SegmentOptions
) -> Iterator[TextSpan | int]:
    """Yield normalized text of one segment each and, between them, pauses in milliseconds."""
    split_chars = options["split_chars"]
    continues = options.get("continues", False)
    fill = options.get("fill", False)
    short_first = options.get("short_first", False) and fill
    if fill and split_chars is not None and isinstance(source, str) and len(source) <= split_chars:
        # Measured only here: for a book, the spoken length takes as long to count as its segments to make.
        fits = spoken_length(source) <= split_chars
        if fits and not (short_first and _has_several(source, split_chars, language)):
            split_chars = None
    if short_first and split_chars is not None:
        sentences = _parts(frontend, source, language, {**options, "fill": False})
        yield from grow_spans(sentences, split_chars, language)
        return
    if split_chars is None:
        source = source if isinstance(source, str) else "".join(source)
        blocks: Iterable[tuple[str, bool]] = [(source, not continues)]
    else:
        blocks = split_paragraphs(source, language)
    at = 0
    for block, is_paragraph in blocks:
        # The blocks are consecutive: each keeps the spans of a source that has them.
        stretches = parse_pauses(
            source.cut(at, at + len(block)) if isinstance(source, NormalizedText) else block
        )
        at += len(block)
        for number, stretch in enumerate(stretches, start=1):
            if isinstance(stretch, int):
                yield stretch
                continue
            normalized = frontend.spell(stretch, language)
            if (on_normalized := options.get("on_normalized")) is not None:
                on_normalized(normalized)
            if not has_words(normalized):
                continue
            # Text that a pause follows ends like a clause, unless a mark ends its sentence.
            goes_on = continues or number < len(stretches) or not is_paragraph
            if split_chars is None:
                text = normalized if len(stretches) == 1 else normalized.strip()
                yield span_of(text.rstrip()) if goes_on else TextSpan(text, Ending.PARAGRAPH)
                continue
            join_below = split_chars if fill else SHORT_CHARS
            for part in split_sentences(normalized, split_chars, language, join_below=join_below):
                yield span_of(part.text) if goes_on and part.ending is Ending.PARAGRAPH else part


def _has_several(text: str, split_chars: int, language: str | None) -> bool:
    return len(list(islice(grow_spans(split_sentences(text, split_chars, language), 0, language), 2))) > 1


def _samples(pause_ms: int) -> int:
    return pause_ms * CLOCKS.sample_rate_hz // 1000
