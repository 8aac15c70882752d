"""Chapters to passages: text that is spoken at once in one voice, and the silence after it.

A mark such as `[voice:emma]` changes the voice up to the next mark, `[voice:default]` or the end of the chapter;
`[pause:2s]` is a silence, as everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from nightingale.book.document import Book, Chapter, Paragraph
from nightingale.engine.requests.segments import parse_pauses
from nightingale.errors import TextError, VoiceError
from nightingale.text.sentences import Ending, ends_sentence, span_of, split_sentences
from nightingale.text.stops import has_words
from nightingale.voices.aliases import DEFAULT
from nightingale.voices.blend import parse_blend

MAX_PASSAGE_CHARS: Final = 220
"""Every model speaks so much at once."""
SENTENCE_PAUSE_MS: Final = 250
CLAUSE_PAUSE_MS: Final = 80
PARAGRAPH_PAUSE_MS: Final = 600
HEADING_PAUSE_MS: Final = 1000
BREAK_PAUSE_MS: Final = 1500
"""Between two scenes."""

_ROMAN: Final = re.compile(r"(?=.)(?:C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_ROMAN_DIGITS: Final = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_VOICE: Final = re.compile(r"\[\s*voice\s*:(?P<name>[^\[\]\n]{0,80})\]|\[\s*/\s*voice\s*\]", re.IGNORECASE)
_QUOTED: Final = re.compile(r"“[^“”]*(?:”|\Z)|«[^«»]*(?:»|\Z)|„[^„“”]*(?:[“”]|\Z)|(?<!\w)\"[^\"]*(?:\"|\Z)")
"""Speech in quotation marks. A speaker who goes on in the next paragraph has no closing mark in this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A sentence, several short ones, or a part of a long one."""

    text: str
    voice: str | None
    """The name of a voice; None for the narrator's."""
    pause_ms: int
    """Silence after it."""
    paragraph: int
    """The index of its paragraph in the chapter."""
    level: int = 0
    """1 to 6 in a heading, 0 elsewhere."""


def passages_of(
    chapter: Chapter, *, language: str | None = None, dialogue_voice: str | None = None
) -> list[Passage]:
    """Return what a chapter says, in order.

    Args:
        chapter: The chapter.
        language: A language code, for its abbreviations.
        dialogue_voice: The voice of quoted speech, where no mark names another.
    """
    found: list[Passage] = []
    voice: str | None = None
    for index, paragraph in enumerate(chapter.paragraphs):
        if not has_words(paragraph.text):
            found = _with_last_pause(found, BREAK_PAUSE_MS)
            continue
        for text, speaker in _by_voice(paragraph.text, voice):
            voice = speaker
            for stretch in parse_pauses(text):
                if isinstance(stretch, int):
                    found = _with_more_pause(found, stretch)
                    continue
                for part, own in _by_quotes(stretch, voice, dialogue_voice):
                    found += _sentences(part, own, index, paragraph, language)
        pause_ms = HEADING_PAUSE_MS if paragraph.level else PARAGRAPH_PAUSE_MS
        found = _with_last_pause(found, pause_ms)
    return found


def voices_in(book: Book) -> list[str]:
    """Return the voices that marks name, each once. Raise TextError for a mark that names none."""
    texts = (paragraph.text for chapter in book.chapters for paragraph in chapter.paragraphs)
    names = [_voice_name(mark) for text in texts for mark in _VOICE.finditer(text)]
    return [name for name in dict.fromkeys(names) if name is not None]


def _by_voice(text: str, voice: str | None) -> Iterator[tuple[str, str | None]]:
    """Yield the parts of a paragraph with their voices; the last part has the voice that goes on."""
    end = 0
    for mark in _VOICE.finditer(text):
        yield text[end : mark.start()], voice
        voice, end = _voice_name(mark), mark.end()
    yield text[end:], voice


def _voice_name(mark: re.Match[str]) -> str | None:
    name = (mark["name"] or DEFAULT).strip().lower()
    # Only names: a book must not be able to read a file of this machine.
    try:
        parse_blend(name)
    except VoiceError as error:
        raise TextError(
            "a mark in the book names no voice",
            got=mark[0],
            allowed="a name of `nightingale voices list`, such as [voice:emma], or [voice:emma+george]",
            fix="Add a clip as a voice first: nightingale voices add NAME CLIP.wav",
        ) from error
    return None if name == DEFAULT else name


def _by_quotes(text: str, voice: str | None, dialogue_voice: str | None) -> Iterator[tuple[str, str | None]]:
    if voice is not None or dialogue_voice is None:
        yield text, voice
        return
    end = 0
    for quoted in _QUOTED.finditer(text):
        yield text[end : quoted.start()], None
        yield quoted[0], dialogue_voice
        end = quoted.end()
    yield text[end:], None


def _sentences(
    text: str, voice: str | None, index: int, paragraph: Paragraph, language: str | None
) -> Iterator[Passage]:
    if paragraph.level and (number := _roman_number(text)):
        text = str(number)
    for span in split_sentences(text, MAX_PASSAGE_CHARS, language):
        ending = span_of(span.text).ending
        spoken = span.spoken
        if paragraph.level and not ends_sentence(spoken):
            spoken = f"{spoken.rstrip(':;,')}."  # otherwise a heading sounds like the start of a sentence
        pause_ms = SENTENCE_PAUSE_MS if ending is Ending.SENTENCE else CLAUSE_PAUSE_MS
        yield Passage(text=spoken, voice=voice, pause_ms=pause_ms, paragraph=index, level=paragraph.level)


def _roman_number(text: str) -> int:
    """Return the number of a heading such as "XIV."; 0 if it is none."""
    numeral = text.strip().rstrip(".").upper()
    if not _ROMAN.fullmatch(numeral):
        return 0
    values = [_ROMAN_DIGITS[digit] for digit in numeral]
    following = [*values[1:], 0]
    return sum(-one if one < two else one for one, two in zip(values, following, strict=True))


def _with_last_pause(passages: list[Passage], pause_ms: int) -> list[Passage]:
    """Let the last passage have at least this pause."""
    if passages and passages[-1].pause_ms < pause_ms:
        passages[-1] = replace(passages[-1], pause_ms=pause_ms)
    return passages


def _with_more_pause(passages: list[Passage], pause_ms: int) -> list[Passage]:
    """Let the last passage be followed by a pause that the text asks for. Before the first one it is dropped."""
    if passages:
        last = passages[-1]
        natural = last.pause_ms in (SENTENCE_PAUSE_MS, CLAUSE_PAUSE_MS)
        passages[-1] = replace(last, pause_ms=pause_ms if natural else last.pause_ms + pause_ms)
    return passages
