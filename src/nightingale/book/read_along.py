"""A read-along EPUB: the text of each chapter, its audio, and a media overlay that joins the two sentence by sentence.

The text is written anew from what was spoken, not copied from the source, so every format can be read along.
"""

from __future__ import annotations

import glob
import hashlib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Final

from nightingale.book.document import Book
from nightingale.book.timeline import SpokenChapter
from nightingale.files import remove_unfinished, whole_file

AUDIO_SUFFIX: Final = ".m4a"
_DATE: Final = (2000, 1, 1, 0, 0, 0)
"""The time of all members, which is always the same: the same book gives the same bytes."""
_CONTAINER: Final = (
    '<?xml version="1.0"?>\n<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
    '<rootfiles><rootfile full-path="book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
)
_STYLE: Final = ".spoken { background: #fd8; }"
_XHTML: Final = (
    '<?xml version="1.0" encoding="utf-8"?>\n<html xmlns="http://www.w3.org/1999/xhtml" '
    'xmlns:epub="http://www.idpf.org/2007/ops">\n<head><title>{title}</title>'
    '<link rel="stylesheet" href="style.css"/></head>\n<body>\n{body}\n</body></html>\n'
)


def write_read_along(
    path: Path,
    book: Book,
    chapters: Sequence[SpokenChapter],
    write_audio: Callable[[Path, SpokenChapter], None],
) -> None:
    """Write the EPUB.

    Args:
        path: The file to write.
        book: The book, for its title and cover.
        chapters: Its chapters with audio.
        write_audio: Writes the audio of a chapter to a file; called with temporary files beside `path`.
    """
    audio = path.with_name(f".{path.name}.audio{AUDIO_SUFFIX}")
    for name in (path.name, audio.name):
        remove_unfinished(path.parent, glob.escape(name))
    with whole_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        # The first member says what the file is, and must not be compressed.
        _add(archive, "mimetype", b"application/epub+zip", compress=False)
        _add(archive, "META-INF/container.xml", _CONTAINER.encode())
        _add(archive, "style.css", _STYLE.encode())
        if book.cover is not None:
            _add(archive, _cover_name(book.cover), book.cover, compress=False)
        for chapter in chapters:
            name = _name(chapter)
            body = "\n".join(_paragraphs(chapter))
            page = _XHTML.format(title=escape(chapter.title), body=body)
            _add(archive, f"{name}.xhtml", page.encode())
            _add(archive, f"{name}.smil", _overlay(chapter).encode())
            try:
                write_audio(audio, chapter)
                with (
                    audio.open("rb") as source,
                    archive.open(_member(f"{name}{AUDIO_SUFFIX}"), "w") as member,
                ):
                    while block := source.read(1 << 20):
                        member.write(block)
            finally:
                audio.unlink(missing_ok=True)
        _add(archive, "nav.xhtml", _navigation(chapters).encode())
        _add(archive, "book.opf", _package(book, chapters).encode())


def _paragraphs(chapter: SpokenChapter) -> Iterator[str]:
    numbered = enumerate(chapter.passages)
    for _, group in groupby(numbered, key=lambda item: item[1].passage.paragraph):
        sentences = list(group)
        level = sentences[0][1].passage.level
        tag = f"h{level}" if level else "p"
        spans = " ".join(
            f'<span id="s{number}">{escape(timed.passage.text)}</span>' for number, timed in sentences
        )
        yield f"<{tag}>{spans}</{tag}>"


def _overlay(chapter: SpokenChapter) -> str:
    name, rate_hz = _name(chapter), chapter.rate_hz
    lines = [
        f'<par id="p{number}"><text src="{name}.xhtml#s{number}"/><audio src="{name}{AUDIO_SUFFIX}" '
        f'clipBegin="{timed.start / rate_hz:.3f}s" clipEnd="{(timed.start + timed.samples) / rate_hz:.3f}s"/></par>'
        for number, timed in enumerate(chapter.passages)
    ]
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<smil xmlns="http://www.w3.org/ns/SMIL" '
        'xmlns:epub="http://www.idpf.org/2007/ops" version="3.0"><body>\n'
        f'<seq id="seq" epub:textref="{name}.xhtml">\n' + "\n".join(lines) + "\n</seq>\n</body></smil>\n"
    )


def _navigation(chapters: Sequence[SpokenChapter]) -> str:
    items = "".join(
        f'<li><a href="{_name(chapter)}.xhtml">{escape(chapter.title)}</a></li>\n' for chapter in chapters
    )
    return _XHTML.format(title="Contents", body=f'<nav epub:type="toc"><ol>\n{items}</ol></nav>')


def _package(book: Book, chapters: Sequence[SpokenChapter]) -> str:
    items = [
        '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>',
        '<item id="style" href="style.css" media-type="text/css"/>',
    ]
    if book.cover is not None:
        kind = "image/png" if _cover_name(book.cover).endswith("png") else "image/jpeg"
        items.append(
            f'<item id="cover" href="{_cover_name(book.cover)}" media-type="{kind}" properties="cover-image"/>'
        )
    meta = [f'<meta property="media:duration">{_seconds(chapters)}</meta>']
    for chapter in chapters:
        name = _name(chapter)
        items += [
            f'<item id="{name}" href="{name}.xhtml" media-type="application/xhtml+xml" media-overlay="{name}-smil"/>',
            f'<item id="{name}-smil" href="{name}.smil" media-type="application/smil+xml"/>',
            f'<item id="{name}-audio" href="{name}{AUDIO_SUFFIX}" media-type="audio/mp4"/>',
        ]
        meta.append(f'<meta property="media:duration" refines="#{name}-smil">{_seconds([chapter])}</meta>')
    spine = "".join(f'<itemref idref="{_name(chapter)}"/>' for chapter in chapters)
    digest = hashlib.sha256("\n".join(one.key for c in chapters for one in c.passages).encode()).hexdigest()
    creator = f"<dc:creator>{escape(book.author)}</dc:creator>" if book.author else ""
    year, month, day, *_ = _DATE
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">\n'
        '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">\n'
        f'<dc:identifier id="id">urn:sha256:{digest}</dc:identifier>'
        f"<dc:title>{escape(book.title)}</dc:title>{creator}"
        f"<dc:language>{escape(book.language or 'en')}</dc:language>"
        f'<meta property="dcterms:modified">{year}-{month:02}-{day:02}T00:00:00Z</meta>'
        '<meta property="media:active-class">spoken</meta>\n'
        + "\n".join(meta)
        + "\n</metadata>\n<manifest>\n"
        + "\n".join(items)
        + f"\n</manifest>\n<spine>{spine}</spine>\n</package>\n"
    )


def _seconds(chapters: Sequence[SpokenChapter]) -> str:
    """Return the time that media overlays cover: that of the passages, without the pauses."""
    return f"{sum(one.samples / chapter.rate_hz for chapter in chapters for one in chapter.passages):.3f}s"


def _name(chapter: SpokenChapter) -> str:
    return f"c{chapter.number:04}"


def _cover_name(cover: bytes) -> str:
    return "cover.png" if cover.startswith(b"\x89PNG") else "cover.jpg"


def _member(name: str, *, compress: bool = False) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, date_time=_DATE)
    info.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    return info


def _add(archive: zipfile.ZipFile, name: str, data: bytes, *, compress: bool = True) -> None:
    archive.writestr(_member(name, compress=compress), data)
