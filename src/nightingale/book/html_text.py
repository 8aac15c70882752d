"""The paragraphs of an HTML or XHTML document, without notes, page numbers and navigation.

Books are untrusted and often not valid. So this is the tolerant parser of the standard library: it expands no
entities of a document, loads nothing, and reads on after a mistake.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

from nightingale.book.document import Paragraph, plain
from nightingale.text.stops import has_words

HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}
BLOCKS: Final = frozenset(
    {
        *HEADINGS, "address", "article", "aside", "blockquote", "body", "center", "dd", "details", "div", "dl",
        "dt", "figcaption", "figure", "footer", "header", "hgroup", "hr", "li", "main", "ol", "p", "pre",
        "section", "summary", "table", "tbody", "tfoot", "thead", "tr", "ul",
    }
)  # fmt: skip
MAX_DEPTH: Final = 500
"""Tags further inside are ignored: a damaged document may open tags without end."""
VOID: Final = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "wbr"})
SKIPPED_TAGS: Final = frozenset(
    {
        "audio", "button", "form", "head", "iframe", "map", "math", "nav", "noscript", "object", "rp", "rt",
        "script", "select", "style", "svg", "template", "textarea", "video",
    }
)  # fmt: skip
SKIPPED_TYPES: Final = frozenset(
    {
        "backlink", "endnote", "endnotes", "footnote", "footnotes", "index", "landmarks", "loi", "lot", "noteref",
        "page-list", "pagebreak", "pagelist", "rearnote", "rearnotes", "toc",
    }
)  # fmt: skip
"""Values of epub:type, of role (after "doc-") and of class whose elements are not read."""
SKIPPED_CLASSES: Final = frozenset({"endnote", "endnotes", "footnote", "footnotes"})

_NOTE_LINK: Final = re.compile(r"note|ftn|\bfn|_fn|[-_#]fn\d|annot|cite", re.IGNORECASE)
_NOTE_TEXT: Final = re.compile(r"[\[({]?\s*(?:\d{1,4}|[*†‡§¶‖]{1,4}|[a-z])\s*[\])}]?")
_MARKED: Final = re.compile(r"[\[({].*[\])}]|[*†‡§¶‖]+")
_PAGE_CLASS: Final = re.compile(r"page[-_]?(?:num|no)|pgnum", re.IGNORECASE)
_PAGE_TEXT: Final = re.compile(
    r"[\[({]?\s*(?:p(?:g|age)?\.?\s*)?(?:\d{1,4}|[ivxlc]{1,8})\s*[\])}]?", re.IGNORECASE
)
_EXPONENTS: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(slots=True)
class HtmlDocument:
    """The text of a document, and the places in it that others refer to."""

    paragraphs: list[Paragraph] = field(default_factory=list)
    anchors: dict[str, int] = field(default_factory=dict)
    """id of an element -> index of the paragraph that it is in, or that follows it."""
    title: str = ""
    note_links: set[str] = field(default_factory=set)
    """Targets of the links to notes, such as "notes.xhtml#n1"."""


@dataclass(slots=True)
class _Element:
    """An open element, and where its text begins."""

    tag: str
    parts: int
    """The number of parts of the present paragraph when it began."""
    href: str = ""
    about: str = ""
    """Its class, id and address, in which a link to a note is recognized."""
    is_page_number: bool = False


def read_html(text: str, note_ids: frozenset[str] = frozenset()) -> HtmlDocument:
    """Return the paragraphs of a document. Elements with an id in `note_ids` are notes, which are not read."""
    reader = _HtmlReader(note_ids)
    try:
        reader.feed(text)
        reader.close()
    except (
        AssertionError
    ):  # how the parser reports a declaration that it cannot read; the text before it stays
        pass
    reader.end_paragraph()
    return reader.document


class _HtmlReader(HTMLParser):
    def __init__(self, note_ids: frozenset[str]) -> None:
        super().__init__(convert_charrefs=True)
        self.document = HtmlDocument()
        self._note_ids = set(note_ids)
        self._open: list[_Element] = []
        self._skipped: int | None = None
        """The place in `_open` of the element that is skipped, with everything in it."""
        self._parts: list[str] = []
        self._level = 0
        self._has_text = self._drops_paragraph = False
        """The present paragraph has text already, or it is a note."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        tag = tag.rpartition(":")[2]
        values = {name: value or "" for name, value in attrs}
        if self._skipped is not None and tag in BLOCKS and self._open[self._skipped].tag not in BLOCKS:
            self._leave_broken_inline()
        if self._skipped is None:
            self._start(tag, values)
        if tag not in VOID and len(self._open) < MAX_DEPTH:
            about = " ".join(values.get(name, "") for name in ("href", "class", "id"))
            is_page_number = bool(_PAGE_CLASS.search(values.get("class", "")))
            self._open.append(_Element(tag, len(self._parts), values.get("href", ""), about, is_page_number))
            if self._skipped is None and self._is_skipped(tag, values):
                self._skipped = len(self._open) - 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag.rpartition(":")[2] not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        tag = tag.rpartition(":")[2]
        if not any(element.tag == tag for element in self._open):
            if tag == "p":  # </p> alone is an empty paragraph
                self.end_paragraph()
            return
        while self._open:
            element = self._open.pop()
            if self._skipped is not None and len(self._open) <= self._skipped:
                self._skipped = None
            elif self._skipped is None:
                self._end(element)
            if element.tag == tag:
                return

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1].tag == "title" and not self.document.title:
            self.document.title = plain(data)
        elif self._skipped is None:
            self._parts.append(data)
            self._has_text = self._has_text or bool(data.strip())

    def end_paragraph(self) -> None:
        """Add the text since the last paragraph, if there is any."""
        text = "".join(self._parts)
        self._parts.clear()
        self._has_text = False
        if self._level:
            lines = [line for line in map(plain, text.split("\n\x0b")) if line]
            text = " ".join(line if line[-1] in ".!?:;,—–-" else f"{line}." for line in lines[:-1])
            text = f"{text} {lines[-1]}".strip() if lines else ""
        else:
            text = plain(text)
        if self._drops_paragraph:
            self._drops_paragraph = False
        elif has_words(text):
            self.document.paragraphs.append(Paragraph(text=text, level=self._level))
        elif text and self.document.paragraphs and self.document.paragraphs[-1].text:
            self.document.paragraphs.append(Paragraph(text=""))  # a row of stars between scenes

    def _start(self, tag: str, values: dict[str, str]) -> None:
        if tag in BLOCKS:
            self.end_paragraph()
            # Lines of a heading may be in <div>; other blocks end a heading whose end tag is missing.
            self._level = HEADINGS.get(tag, self._level if tag == "div" else 0)
        names = {values.get("id", ""), values.get("name", "") if tag == "a" else ""} - {""}
        for name in names:
            self.document.anchors.setdefault(name, len(self.document.paragraphs))
        if names & self._note_ids and tag == "a" and not self._has_text:
            self._drops_paragraph = True
        if tag == "br":
            if self._parts and self._parts[-1] == "\n\x0b":
                self.end_paragraph()
            else:
                self._parts.append("\n\x0b")
        elif tag == "hr":
            self._parts.append("*")
            self.end_paragraph()
        elif tag in ("td", "th") and self._has_text:
            self._parts.append(", ")
        elif tag == "img" and self._level:
            self._parts.append(f" {values.get('alt', '')} ")
        elif tag == "math":
            self._parts.append(f" {values.get('alttext', '')} ")

    def _is_skipped(self, tag: str, values: dict[str, str]) -> bool:
        kinds = {kind.rpartition(":")[2] for kind in values.get("epub:type", "").lower().split()}
        kinds |= {kind.removeprefix("doc-") for kind in values.get("role", "").lower().split()}
        classes = set(values.get("class", "").lower().split())
        is_note = tag != "a" and values.get("id", "") in self._note_ids
        hidden = "hidden" in values or re.search(r"display\s*:\s*none", values.get("style", "")) is not None
        if "noteref" in kinds:
            self._add_note(values.get("href", ""))
        return (
            tag in SKIPPED_TAGS
            or bool(kinds & SKIPPED_TYPES)
            or bool(classes & SKIPPED_CLASSES)
            or is_note
            or hidden
        )

    def _end(self, element: _Element) -> None:
        """Finish an element: a paragraph, or text that may be the number of a note or of a page."""
        tag = element.tag
        if tag in BLOCKS:
            self.end_paragraph()
            if tag in HEADINGS:
                self._level = 0
            return
        if tag not in ("a", "sup") and not element.is_page_number:
            return
        own = "".join(self._parts[element.parts :])
        text = own.strip()
        if element.is_page_number and _PAGE_TEXT.fullmatch(text):
            del self._parts[element.parts :]
        elif tag == "a" and self._is_note_link(element, text):
            self._add_note(element.href)
            # An exponent around it is empty then, and stays so.
            del self._parts[element.parts :]
        elif tag == "sup" and _NOTE_TEXT.fullmatch(text):
            before = "".join(self._parts[max(0, element.parts - 8) : element.parts])
            del self._parts[element.parts :]
            if _is_exponent(before) or text.isalpha():
                self._parts.append(own.translate(_EXPONENTS))

    def _is_note_link(self, element: _Element, text: str) -> bool:
        if "#" not in element.href or not _NOTE_TEXT.fullmatch(text):
            return False
        in_exponent = any(outer.tag == "sup" for outer in self._open)
        return in_exponent or bool(_MARKED.fullmatch(text)) or bool(_NOTE_LINK.search(element.about))

    def _add_note(self, href: str) -> None:
        self.document.note_links.add(href)
        document, _, name = href.partition("#")
        if name and not document:
            self._note_ids.add(name)

    def _leave_broken_inline(self) -> None:
        """End a skipped inline element at the next block: its end tag is missing."""
        if self._skipped is not None and self._open[self._skipped].tag in ("a", "span", "sup"):
            del self._open[self._skipped :]
            self._skipped = None


def _is_exponent(before: str) -> bool:
    """Return whether a number set high after this text belongs to it: to a digit or a short unit (m, cm, x).

    After a word it is that of a note, and after a space or nothing that of a verse.
    """
    word = re.search(r"[^\W_]*\Z", before)
    return word is not None and word[0] != "" and (word[0][-1].isdigit() or len(word[0]) <= 2)
