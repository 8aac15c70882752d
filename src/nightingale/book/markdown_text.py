"""Markdown to books: headings, paragraphs and lists as plain text; code blocks, notes and images are left out."""

from __future__ import annotations

import re
from typing import Final

from nightingale.book.document import Book, Paragraph, chapters_by_headings, plain
from nightingale.text.code_blocks import replace_code_blocks
from nightingale.text.stops import has_words, strip_link_addresses

_FRONT_MATTER: Final = re.compile(r"\A---\n(.{0,20000}?)\n(?:---|\.\.\.)\n", re.DOTALL)
_FACT: Final = re.compile(
    r"^(title|author|date|language|lang|publisher|description):[ \t]*(\S.*)$", re.MULTILINE
)
_COMMENT: Final = re.compile(r"<!--.{0,20000}?-->", re.DOTALL)
_NOTE_TEXT: Final = re.compile(r"^\[\^[^\]\n]{1,60}\]:.*(?:\n[ \t]+\S.*)*", re.MULTILINE)
_NOTE: Final = re.compile(r"\s?\[\^[^\]\n]{1,60}\]|\s?\[\d{1,4}\](?!\()")
_IMAGE: Final = re.compile(r"!\[[^\]\n]{0,300}\]\([^)\n]{0,1000}\)")
_HTML_TAG: Final = re.compile(r"</?[a-zA-Z][^<>\n]{0,300}>")
_HEADING: Final = re.compile(r"(#{1,6})[ \t]+(.*?)[ \t]*#*")
_UNDERLINED: Final = re.compile(r"(\S.*)\n(=+|-+)[ \t]*(?=\n|\Z)")
_RULE: Final = re.compile(r"(?:[*_-][ \t]*){3,}")
_ITEM: Final = re.compile(r"^[ \t]*(?:[-*+]|\d{1,4}[.)])[ \t]+", re.MULTILINE)
_QUOTE: Final = re.compile(r"^[ \t]*>[ \t]?", re.MULTILINE)
_EMPHASIS: Final = re.compile(r"(\*{1,3}|(?<!\w)_{1,3}|~~|`+)(\S(?:.{0,2000}?\S)?)\1(?!\w)", re.DOTALL)


def read_markdown(text: str, name: str) -> Book:
    """Return the book in a Markdown file. Its title is in the front matter, the only top heading, or the name."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    front = _FRONT_MATTER.match(text)
    facts = {key: value.strip(" \"'") for key, value in _FACT.findall(front[1])} if front else {}
    text = replace_code_blocks(text[front.end() :] if front else text)
    text = _IMAGE.sub("", _NOTE.sub("", _NOTE_TEXT.sub("", _COMMENT.sub("", text))))
    paragraphs: list[Paragraph] = []
    for block in re.split(r"\n[^\S\n]*\n\s*", text.strip("\n")):
        paragraphs += _paragraphs(block)
    headings = [one for one in paragraphs if one.level]
    tops = [one.text for one in headings if one.level == 1]
    title = facts.get("title") or (tops[0] if len(tops) == 1 and headings[0].level == 1 else "") or name
    return Book(
        chapters=tuple(chapters_by_headings(paragraphs, title)),
        title=title,
        author=facts.get("author", ""),
        language=facts.get("language", facts.get("lang", "")),
        publisher=facts.get("publisher", ""),
        date=facts.get("date", ""),
        description=facts.get("description", ""),
    )


def _paragraphs(block: str) -> list[Paragraph]:
    """Return the paragraphs of a block: headings may stand directly before text, and each item of a list is one."""
    if _RULE.fullmatch(block.strip()):
        return [Paragraph(text="")]
    underlined = _UNDERLINED.match(block)
    if underlined:
        level = 1 if underlined[2][0] == "=" else 2
        rest = block[underlined.end() :].strip("\n")
        return [*_spoken(underlined[1], level), *(_paragraphs(rest) if rest else [])]
    first, _, rest = block.partition("\n")
    heading = _HEADING.fullmatch(first.strip())
    if heading:
        found = _spoken(heading[2], len(heading[1]))
        return [*found, *(_paragraphs(rest) if rest.strip() else [])]
    block = _QUOTE.sub("", block)
    items = _ITEM.split(block)
    return [paragraph for item in items for paragraph in _spoken(item, 0)]


def _spoken(text: str, level: int) -> list[Paragraph]:
    text = strip_link_addresses(_HTML_TAG.sub(" ", text))
    for _ in range(3):  # emphasis within emphasis
        text = _EMPHASIS.sub(r"\2", text)
    text = plain(text.replace("\\\n", " "))
    return [Paragraph(text=text, level=level)] if has_words(text) else []
