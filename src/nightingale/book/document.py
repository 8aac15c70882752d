"""A book as text: metadata, cover, and chapters of paragraphs. Every reader returns this value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from nightingale.errors import TextError
from nightingale.text.stops import has_words

MAX_TEXT_BYTES = 64 * 2**20
"""All text of a book, with its markup. The Bible has 4 MB."""
MAX_TITLE_CHARS = 200
OPENING = "Opening"
"""The title of what comes before the first chapter, where the book has no title either."""

_UNSEEN = re.compile("[\x00-\x08\x0e-\x1b\x7f\u00ad\u200b\u2060\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A paragraph or a heading; without text, a break between two scenes."""

    text: str
    level: int = 0
    """1 to 6 for a heading, 0 for other text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """Consecutive paragraphs under one entry of the table of contents."""

    title: str
    paragraphs: tuple[Paragraph, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """The text of a book, its chapters in reading order."""

    chapters: tuple[Chapter, ...]
    title: str = ""
    author: str = ""
    language: str = ""
    publisher: str = ""
    date: str = ""
    description: str = ""
    cover: bytes | None = None
    """A JPEG or PNG image."""
    notes: tuple[str, ...] = field(default=())
    """Sentences about parts that were left out or repaired."""


def decode_text(data: bytes) -> str:
    """Return text in the encoding that it declares, in UTF-8, or else in Windows-1252, which many old files have."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    declared = re.search(rb"""(?:encoding|charset)\s*=\s*["']?([\w.:-]{2,40})""", data[:1024])
    names = ["utf-8-sig", declared[1].decode("ascii") if declared else "", "cp1252"]
    for name in filter(None, names):
        try:
            return data.decode(name)
        except (UnicodeError, LookupError):
            continue
    return data.decode("utf-8", "replace")


def plain(text: str) -> str:
    """Return text with single spaces, and without soft hyphens, controls and other characters that are not seen."""
    return " ".join(_UNSEEN.sub("", text).split())


def split_chapters(
    paragraphs: Sequence[Paragraph], starts: Iterable[tuple[int, str]], book_title: str
) -> list[Chapter]:
    """Return chapters that begin at the given paragraphs, without those that have nothing to say.

    Args:
        paragraphs: The paragraphs of the whole book.
        starts: (index of the first paragraph, title) of each chapter, in any order.
        book_title: The title of what comes before the first chapter.
    """
    titles = {0: "", **{index: plain(title)[:MAX_TITLE_CHARS] for index, title in starts}}
    edges = [*sorted(titles), len(paragraphs)]
    chapters = []
    for start, end in pairwise(edges):
        own = tuple(paragraphs[start:end])
        if any(has_words(paragraph.text) for paragraph in own):
            heading = next((one.text for one in own if one.level), "")
            chapters.append(Chapter(title=titles[start] or heading or book_title or OPENING, paragraphs=own))
    return chapters


def chapters_by_headings(paragraphs: Sequence[Paragraph], book_title: str) -> list[Chapter]:
    """Return the chapters of a text that has headings and no table of contents.

    The headings of the highest level that occurs twice begin chapters, and so do those above it, such as parts.
    """
    levels = [paragraph.level for paragraph in paragraphs if paragraph.level]
    chosen = next((level for level in range(1, 7) if levels.count(level) > 1), 0)
    starts = [(index, one.text) for index, one in enumerate(paragraphs) if 0 < one.level <= chosen]
    return split_chapters(paragraphs, starts, book_title)


def check_has_text(chapters: Sequence[Chapter], source: object) -> None:
    """Raise TextError if a book has nothing to say."""
    if not chapters:
        raise TextError(
            "the book has no text",
            got=str(source),
            allowed="a book with at least one word",
            fix="A book of scanned pages needs text recognition (OCR) first.",
        )
