"""Captions: the words of an audio as cues of SubRip (SRT) or WebVTT, by the usual rules for subtitles.

A cue ends with its sentence or earlier. It has at most two lines of 42 characters, and it stays on the screen until
it can be read at 17 characters a second, or until the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from itertools import accumulate
from math import inf
from typing import Any, Final

from nightingale.text.stops import find_sentence_end
from nightingale.types import TimedWord

MAX_LINE_CHARS: Final = 42
MAX_LINES: Final = 2
MAX_CHARS_PER_S: Final = 17
CLAUSE_ENDS: Final = (",", ";", ":", "—", "–", "--", ".", "!", "?", ',"', ",”")
MIDDLE_OF_CLAUSE: Final = 0.5
"""The cost of a cue that ends inside a clause; a cue more costs one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """Text that is shown at once, and when."""

    start_s: float
    end_s: float
    lines: tuple[str, ...]


def make_cues(words: Iterable[TimedWord], language: str | None = None) -> list[Cue]:
    """Return the cues of some audio.

    Args:
        words: The words, in order: `audio.words`, or those of all chunks of a stream.
        language: A language code, for its abbreviations.
    """
    pieces = [piece for word in words for piece in _pieces(word)]
    cues = [cue for sentence in _sentences(pieces, language) for cue in _cues_of(sentence)]
    next_starts_s = [*(cue.start_s for cue in cues[1:]), inf]
    return [
        replace(cue, end_s=_readable_until(cue, next_start_s))
        for cue, next_start_s in zip(
            cues, next_starts_s, strict=False
        )  # without a cue there is a start too many
    ]


def format_srt(words: Iterable[TimedWord], language: str | None = None) -> str:
    """Return the words as SubRip subtitles."""
    return "\n".join(
        f"{number}\n{_clock(cue.start_s, ',')} --> {_clock(cue.end_s, ',')}\n" + "\n".join(cue.lines) + "\n"
        for number, cue in enumerate(make_cues(words, language), start=1)
    )


def format_webvtt(words: Iterable[TimedWord], language: str | None = None) -> str:
    """Return the words as WebVTT captions."""
    cues = [
        f"{_clock(cue.start_s, '.')} --> {_clock(cue.end_s, '.')}\n{escape(chr(10).join(cue.lines), quote=False)}\n"
        for cue in make_cues(words, language)
    ]
    return "\n".join(["WEBVTT\n", *cues])


def _clock(seconds: float, point: str) -> str:
    minutes, ms = divmod(round(1000 * seconds), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{ms // 1000:02d}{point}{ms % 1000:03d}"


def _pieces(word: TimedWord) -> Iterator[TimedWord]:
    """Yield the word, or parts of it if it is longer than a line, with equal shares of its time."""
    text = " ".join(word.word.split())
    parts = [text[at : at + MAX_LINE_CHARS] for at in range(0, len(text), MAX_LINE_CHARS)]
    share = (word.end_s - word.start_s) / max(1, len(parts))
    for number, part in enumerate(parts):
        start_s = word.start_s + number * share
        yield replace(word, word=part, start_s=start_s, end_s=start_s + share)


def _sentences(words: Sequence[TimedWord], language: str | None) -> Iterator[Sequence[TimedWord]]:
    text, ends, first = " ".join(word.word for word in words), list[int](), 0
    at = 0
    for word in words:
        at += len(word.word)
        ends.append(at)
        at += 1
    start = 0
    while first < len(words):
        end, _ = find_sentence_end(text, start, final=True, language=language)
        start = len(text) if end is None else end
        last = first
        while last < len(words) and ends[last] <= start:
            last += 1
        if last > first:
            yield words[first:last]
        first = last


def _cues_of(sentence: Sequence[TimedWord]) -> Iterator[Cue]:
    """Yield the cues of one sentence: as few as possible, of even length, and ending with clauses."""

    @cache
    def best(first: int) -> tuple[float, int]:
        """Return the cost of the cues from a word on, and the end of the first of them."""
        if first == len(sentence):
            return 0.0, first
        found = [
            (cost + best(end)[0], end)
            for end in range(first + 1, len(sentence) + 1)
            if (cost := _cost(sentence[first:end], is_last=end == len(sentence))) is not None
        ]
        return min(found)

    # From the end, so that no call is nested deeply.
    for first in range(len(sentence), -1, -1):
        best(first)
    first = 0
    while first < len(sentence):
        end = best(first)[1]
        words, first = sentence[first:end], end
        lines = _layout([word.word for word in words])
        assert lines is not None  # `_cost` has refused the others
        yield Cue(start_s=words[0].start_s, end_s=words[-1].end_s, lines=lines)


def _cost(words: Sequence[TimedWord], *, is_last: bool) -> float | None:
    """Return the cost of a cue; None if it does not fit."""
    lines = _layout([word.word for word in words])
    if lines is None:
        return None
    unused = 1 - sum(map(len, lines)) / (MAX_LINES * MAX_LINE_CHARS)
    breaks_clause = not (is_last or words[-1].word.endswith(CLAUSE_ENDS))
    return 1 + unused**2 + (MIDDLE_OF_CLAUSE if breaks_clause else 0.0)


def _layout(words: Sequence[str]) -> tuple[str, ...] | None:
    """Return one line, or two of similar length, preferably divided after a clause; None if that is too little."""
    text = " ".join(words)
    if len(text) <= MAX_LINE_CHARS:
        return (text,)
    if len(text) > MAX_LINES * MAX_LINE_CHARS + 1:
        return None
    best: tuple[float, tuple[str, ...]] | None = None
    for at in range(1, len(words)):
        lines = " ".join(words[:at]), " ".join(words[at:])
        if max(map(len, lines)) <= MAX_LINE_CHARS:
            uneven = abs(len(lines[0]) - len(lines[1])) - (12 if words[at - 1].endswith(CLAUSE_ENDS) else 0)
            if best is None or uneven < best[0]:
                best = uneven, lines
    return None if best is None else best[1]


def _readable_until(cue: Cue, next_start_s: float) -> float:
    """Return the end of a cue, later than its last word if it takes longer to read and there is time."""
    readable_s = cue.start_s + sum(map(len, cue.lines)) / MAX_CHARS_PER_S
    return max(cue.end_s, min(readable_s, next_start_s))


def words_json(words: Iterable[TimedWord]) -> list[dict[str, Any]]:
    """Return words as JSON objects: times in seconds, and positions in the text that was given."""
    return [
        {
            "word": word.word,
            "start": round(word.start_s, 3),
            "end": round(word.end_s, 3),
            "text_start": word.start_char,
            "text_end": word.end_char,
        }
        for word in words
    ]


def spread_words(text: str, start_s: float, end_s: float) -> list[TimedWord]:
    """Return the words of a text with times by their length: an estimate, where words were not timed."""
    words = text.split()
    rate_s, ends = (end_s - start_s) / max(1, len("".join(words))), list(accumulate(map(len, words)))
    found, char = list[TimedWord](), 0
    for word, end in zip(words, ends, strict=True):
        char = text.index(word, char)
        start = start_s + rate_s * (end - len(word))
        found.append(
            TimedWord(
                word=word,
                start_s=start,
                end_s=start_s + rate_s * end,
                start_char=char,
                end_char=char + len(word),
            )
        )
        char += len(word)
    return found
