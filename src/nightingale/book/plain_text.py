"""Text files to books: paragraphs, and chapters where a line of its own says so."""

from __future__ import annotations

import re
from typing import Final

from nightingale.book.document import Book, Paragraph, plain, split_chapters
from nightingale.text.stops import has_words

_NUMBER: Final = (
    r"(?:\d{1,4}|[ivxlcdm]{1,9}|(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)?[- ]?"
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|"
    r"eighteen|nineteen)|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|"
    r"the (?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|last))"
)
_HEADING: Final = re.compile(
    rf"(?:(?:chapter|part|book|volume|canto|act|scene|section|stave|letter)\s+{_NUMBER}\b"
    r"(?:[ \t]*[:.—–\n-][:.—–\n \t-]*\S[^\n]{0,80})?"
    r"|prologue|epilogue|preface|foreword|introduction|afterword|conclusion|interlude|appendix(?:\s+\w{1,4})?|the end)"
    r"[.:]?",
    re.IGNORECASE,
)
"""Chapter 1; CHAPTER IV. The Storm; Part Two; Prologue."""
_PAGE_NUMBER: Final = re.compile(r"[-–—\[(]?\s*(?:page\s+)?\d{1,4}\s*[-–—\])]?", re.IGNORECASE)
_ILLUSTRATION: Final = re.compile(r"\[(?:illustration|blank page)[^\]]{0,500}\]", re.IGNORECASE)
_NOTE: Final = re.compile(r"\s?\[\d{1,4}\]")
_EMPHASIS: Final = re.compile(r"(?<![\w_])_([^_\n]{1,500})_(?![\w_])")
_GUTENBERG: Final = re.compile(r"^\*\*\* ?(START|END) OF (?:THE|THIS) PROJECT GUTENBERG[^\n]*$", re.MULTILINE)
MAX_HEADING_CHARS: Final = 100


def read_plain_text(text: str, name: str) -> Book:
    """Return the book in a text file. Its title is the name of the file, or the one Project Gutenberg wrote into it."""
    title, author, text = _without_licence(text)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n").split("\n")
    has_blank_lines = any(not line.strip() and _has_text_around(lines, at) for at, line in enumerate(lines))
    blocks = re.split(r"\n[^\S\n]*\n\s*", "\n".join(lines)) if has_blank_lines else lines
    paragraphs = [paragraph for block in blocks if (paragraph := _paragraph(block)) is not None]
    paragraphs = _without_contents(paragraphs)
    starts = []
    for at, paragraph in enumerate(paragraphs):
        # A part's heading and its first chapter's begin one chapter.
        if paragraph.level and not (at and paragraphs[at - 1].level):
            following = (
                paragraphs[at + 1].text if at + 1 < len(paragraphs) and paragraphs[at + 1].level else ""
            )
            starts.append((at, f"{paragraph.text} {following}".strip()))
    title = title or name
    return Book(chapters=tuple(split_chapters(paragraphs, starts, title)), title=title, author=author)


def _has_text_around(lines: list[str], at: int) -> bool:
    return 0 < at < len(lines) - 1 and bool(lines[at - 1].strip())


def _paragraph(block: str) -> Paragraph | None:
    block = _EMPHASIS.sub(r"\1", _NOTE.sub("", _ILLUSTRATION.sub("", block))).strip()
    text = plain(block)
    if not text or _PAGE_NUMBER.fullmatch(text):
        return None
    if not has_words(text):
        return Paragraph(text="")
    is_heading = len(text) <= MAX_HEADING_CHARS and _HEADING.fullmatch(block) is not None
    return Paragraph(text=text, level=1 if is_heading else 0)


def _without_contents(paragraphs: list[Paragraph]) -> list[Paragraph]:
    """Leave out a table of contents: headings without text between them that come again later."""
    last = {one.text.lower(): at for at, one in enumerate(paragraphs) if one.level}
    kept: list[Paragraph] = []
    in_contents = False
    for at, one in enumerate(paragraphs):
        comes_again = bool(one.level) and last[one.text.lower()] > at
        before_heading = at + 1 < len(paragraphs) and bool(paragraphs[at + 1].level)
        # The last line of the table may be followed by text.
        in_contents = comes_again and (before_heading or in_contents)
        if not in_contents:
            kept.append(one)
    return kept


def _without_licence(text: str) -> tuple[str, str, str]:
    """Return title, author and text of a file of Project Gutenberg, without its licence; or the text as it is."""
    marks = {mark[1]: mark for mark in _GUTENBERG.finditer(text)}
    if "START" not in marks:
        return "", "", text
    start = marks["START"]
    end = marks["END"].start() if "END" in marks else len(text)
    facts = dict(re.findall(r"^(Title|Author): (.+)$", text[: start.start()], re.MULTILINE))
    return facts.get("Title", "").strip(), facts.get("Author", "").strip(), text[start.end() : end]
