"""EPUB to book: the documents of the spine, divided into chapters by the table of contents."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from nightingale.book.document import (
    Book,
    Chapter,
    Paragraph,
    check_has_text,
    split_chapters,
)
from nightingale.book.epub_archive import (
    MAX_IMAGE_BYTES,
    EpubArchive,
    broken_epub,
    resolve,
)
from nightingale.book.epub_package import (
    Package,
    TocEntry,
    read_nav,
    read_ncx,
    read_package,
    read_tags,
)
from nightingale.book.html_text import HtmlDocument, read_html

CONTAINER = "META-INF/container.xml"
TEXT_TYPES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")
TEXT_SUFFIXES = (".xhtml", ".html", ".htm", ".xml")
IMAGE_MARKS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
"""The first bytes of JPEG and PNG, which audio files may have as covers."""
MIN_HEADINGS = 3
"""A table of contents with one entry is not used if at least so many documents have headings."""


def read_epub(path: Path, file: BinaryIO | None = None, *, max_text_bytes: int | None = None) -> Book:
    """Return the book in an EPUB file. Raise TextError if it cannot be read or has no text.

    With `file`, the book is read from there, and `path` only names it.
    """
    with EpubArchive(path, file, max_text_bytes=max_text_bytes) as archive:
        opf = _find_package(archive, path)
        package = read_package(archive.read_text(opf) or "", opf)
        notes: list[str] = []
        toc = _read_toc(archive, package)
        names = _reading_order(package, toc, notes)
        if not names:
            raise broken_epub(path, "it has neither a spine nor a table of contents")
        documents = _read_documents(archive, names, package, notes)
        title = package.first("title")
        chapters = _divide(documents, toc, title)
        check_has_text(chapters, path)
        return Book(
            chapters=tuple(chapters),
            title=title,
            author=", ".join(package.metadata.get("creator", [])),
            language=package.first("language"),
            publisher=package.first("publisher"),
            date=package.first("date")[:10],
            description=" ".join(
                " ".join(one.text for one in read_html(package.first("description")).paragraphs).split()
            ),
            cover=_read_cover(archive, package, notes),
            notes=tuple(notes),
        )


def _find_package(archive: EpubArchive, path: Path) -> str:
    """Return the OPF file: the one that the container names, or else the only one in the archive."""
    container = archive.read_text(CONTAINER) or ""
    named = [tag.attributes.get("full-path", "") for tag in read_tags(container) if tag.name == "rootfile"]
    others = [name for name in archive.names if name.lower().endswith(".opf")]
    found = next((name for name in (*named, *others) if archive.locate(name) is not None), None)
    if found is None:
        raise broken_epub(path, "it has no package document (.opf)")
    return found


def _read_toc(archive: EpubArchive, package: Package) -> list[TocEntry]:
    """Return the table of contents of EPUB 3, or else that of EPUB 2."""
    items = list(package.items.values())
    navs = [item.path for item in items if "nav" in item.properties]
    ncx = [package.items[package.ncx].path] if package.ncx in package.items else []
    ncx += [item.path for item in items if item.media_type == "application/x-dtbncx+xml"]
    for name, read in (*((one, read_nav) for one in navs), *((one, read_ncx) for one in ncx)):
        if entries := read(archive.read_text(name) or "", name):
            return entries
    return []


def _reading_order(package: Package, toc: list[TocEntry], notes: list[str]) -> list[str]:
    """Return the documents in the order of the spine, or without one in that of the table of contents."""
    items = (package.items.get(key) for key in package.spine)
    names = [item.path for item in items if item is not None]
    if not names and toc:
        notes.append("The EPUB has no spine; the order is that of its table of contents.")
        names = [entry.document for entry in toc]
    navigation = {item.path for item in package.items.values() if "nav" in item.properties}
    return [name for name in dict.fromkeys(names) if name not in navigation]


def _read_documents(
    archive: EpubArchive, names: list[str], package: Package, notes: list[str]
) -> dict[str, HtmlDocument]:
    kinds = {item.path: item.media_type for item in package.items.values()}
    documents: dict[str, HtmlDocument] = {}
    note_ids: dict[str, set[str]] = {}
    for name in names:
        if kinds.get(name) not in TEXT_TYPES and not name.lower().endswith(TEXT_SUFFIXES):
            notes.append(f"{name} is not text and is left out.")
            continue
        text = archive.read_text(name)
        if text is None:
            notes.append(f"{name} is missing, damaged or too long, and is left out.")
            continue
        document = documents[name] = read_html(text, frozenset(note_ids.get(name, ())))
        for link in document.note_links:
            target, fragment = resolve(name, link)
            note_ids.setdefault(target, set()).add(fragment)
    return documents


def _divide(documents: dict[str, HtmlDocument], toc: list[TocEntry], title: str) -> list[Chapter]:
    """Return the chapters: those of the table of contents or, if it is useless, a document with a heading each."""
    paragraphs: list[Paragraph] = []
    first: dict[str, int] = {}
    by_heading: list[tuple[int, str]] = []
    for name, document in documents.items():
        first[name] = len(paragraphs)
        heading = next((one.text for one in document.paragraphs if one.level), None)
        if heading is not None:
            by_heading.append((len(paragraphs), heading))
        paragraphs += document.paragraphs
    starts: dict[int, TocEntry] = {}
    for entry in toc:
        place = _find(entry, documents[entry.document]) if entry.document in first else None
        if place is not None:
            at = first[entry.document] + place
            known = starts.get(at)
            # A part and its first chapter have one place. A document before it without text is another matter.
            if known is not None and known.document == entry.document and known.title != entry.title:
                entry = entry._replace(title=f"{known.title}: {entry.title}")
            starts[at] = entry
    is_useless = len(starts) < 2 and len(by_heading) >= MIN_HEADINGS
    chosen = [(at, entry.title) for at, entry in starts.items()]
    return split_chapters(paragraphs, by_heading if is_useless or not chosen else chosen, title)


def _find(entry: TocEntry, document: HtmlDocument) -> int | None:
    """Return the paragraph that an entry points to, or the heading that it names; None if it has neither."""
    if not entry.fragment or entry.fragment in document.anchors:
        return document.anchors.get(entry.fragment, 0)
    title = entry.title.lower()
    headings = (at for at, one in enumerate(document.paragraphs) if one.level and one.text.lower() == title)
    return next(headings, None)


def _read_cover(archive: EpubArchive, package: Package, notes: list[str]) -> bytes | None:
    name = package.cover_path()
    data = archive.read(name, MAX_IMAGE_BYTES) if name is not None else None
    if data is None or data.startswith(IMAGE_MARKS):
        return data
    notes.append(f"The cover {name} is neither JPEG nor PNG and is left out.")
    return None
