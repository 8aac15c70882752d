"""Reading of a book file by its suffix."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nightingale.book.document import (
    MAX_TEXT_BYTES,
    Book,
    chapters_by_headings,
    check_has_text,
    decode_text,
)
from nightingale.book.epub import IMAGE_MARKS, read_epub
from nightingale.book.epub_archive import MAX_IMAGE_BYTES
from nightingale.book.html_text import read_html
from nightingale.book.markdown_text import read_markdown
from nightingale.book.plain_text import read_plain_text
from nightingale.errors import ConfigError, TextError


def _read_html_book(text: str, name: str) -> Book:
    document = read_html(text)
    title = document.title or name
    return Book(chapters=tuple(chapters_by_headings(document.paragraphs, title)), title=title)


READERS: Final[dict[str, Callable[[str, str], Book]]] = {
    ".txt": read_plain_text,
    ".text": read_plain_text,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".html": _read_html_book,
    ".htm": _read_html_book,
    ".xhtml": _read_html_book,
}
"""Suffix -> a function of the text and the name of the file. EPUBs are archives and have a reader of their own."""


def read_cover(path: Path) -> bytes:
    """Return an image for the cover. Raise ConfigError if it cannot be one."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            "the cover cannot be read", got=f"{path}: {error.strerror}", param="cover"
        ) from error
    if not data.startswith(IMAGE_MARKS) or len(data) > MAX_IMAGE_BYTES:
        allowed = f"a JPEG or PNG image of at most {MAX_IMAGE_BYTES} bytes"
        raise ConfigError("not a cover", got=str(path), allowed=allowed, param="cover")
    return data


def read_book(path: Path) -> Book:
    """Return the book in a file.

    Raises:
        ConfigError: No reader knows the suffix.
        TextError: The file cannot be read, is damaged or protected, or has no text.
    """
    suffix = _check_suffix(path)
    try:
        if not path.is_file():
            raise FileNotFoundError(2, "no such file")
        if suffix == ".epub":
            return read_epub(path)
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        got = f"{path}: {error.strerror or error}"
        raise TextError("the book cannot be read", got=got, fix="Check the path.") from error
    return _read_text_book(data, path, MAX_TEXT_BYTES)


def read_book_bytes(data: bytes, name: str, *, max_text_bytes: int = MAX_TEXT_BYTES) -> Book:
    """Return the book in the contents of a file whose name is `name`. Raise what `read_book` raises."""
    path = Path(Path(name.replace("\\", "/")).name)
    if _check_suffix(path) == ".epub":
        return read_epub(path, io.BytesIO(data), max_text_bytes=max_text_bytes)
    return _read_text_book(data, path, max_text_bytes)


def _check_suffix(path: Path) -> str:
    """Return the suffix in lower case; raise ConfigError if no reader knows it."""
    suffix = path.suffix.lower()
    if suffix != ".epub" and suffix not in READERS:
        raise ConfigError(
            "not a kind of book",
            got=path.name,
            allowed=", ".join((".epub", *READERS)),
            fix="Convert the book to EPUB first, for example with Calibre.",
            param="book",
        )
    return suffix


def _read_text_book(data: bytes, path: Path, max_text_bytes: int) -> Book:
    if len(data) > max_text_bytes:
        raise TextError(
            "the book is too long", got=f"more than {max_text_bytes} bytes", fix="Split it into volumes."
        )
    book = READERS[path.suffix.lower()](decode_text(data), path.stem)
    check_has_text(book.chapters, path)
    return book
