"""Bounded reading of an EPUB's zip archive: no member is trusted to have the size that it declares."""

from __future__ import annotations

import posixpath
import re
import zipfile
import zlib
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final
from urllib.parse import unquote

from nightingale.book.document import MAX_TEXT_BYTES, decode_text
from nightingale.errors import TextError

MAX_MEMBERS: Final = 50_000
MAX_DOCUMENT_BYTES: Final = 16 * 2**20
MAX_IMAGE_BYTES: Final = 16 * 2**20

_FONT_OBFUSCATION: Final = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
_READ_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)


class EpubArchive:
    """An open EPUB. Use it as a context manager."""

    def __init__(
        self, path: Path, file: BinaryIO | None = None, *, max_text_bytes: int | None = None
    ) -> None:
        """Open the archive; raise TextError if it is none, or is protected. With `file`, `path` only names it."""
        self._path, self._read_bytes = path, 0
        self._max_text_bytes = MAX_TEXT_BYTES if max_text_bytes is None else max_text_bytes
        try:
            self._zip = zipfile.ZipFile(file or path)
        except _READ_ERRORS as error:
            raise broken_epub(path, f"not a zip archive ({error})") from error
        members = self._zip.infolist()
        if len(members) > MAX_MEMBERS:
            self._zip.close()
            raise broken_epub(path, f"{len(members)} files, more than {MAX_MEMBERS}")
        # Not `is_dir`, which fails for an empty name.
        self._members = {one.filename: one for one in members if not one.filename.endswith("/")}
        self._by_lower_case = {name.lower(): name for name in self._members}
        self._check_protection()

    def __enter__(self) -> EpubArchive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    @property
    def names(self) -> list[str]:
        return list(self._members)

    def locate(self, name: str) -> str | None:
        """Return the member of that name, in any case; None if there is none."""
        return name if name in self._members else self._by_lower_case.get(name.lower())

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return a member's contents; None if it is missing, damaged or longer than `max_bytes`.

        Raise TextError if more was read than a book can have.
        """
        found = self.locate(name)
        if found is None:
            return None
        try:
            with self._zip.open(self._members[found]) as file:
                data = file.read(max_bytes + 1)
        except _READ_ERRORS:
            return None
        self._read_bytes += len(data)
        if self._read_bytes > self._max_text_bytes + MAX_IMAGE_BYTES:
            raise broken_epub(self._path, f"more than {self._max_text_bytes} bytes of text")
        return data if len(data) <= max_bytes else None

    def read_text(self, name: str) -> str | None:
        """Return a document's text; None as `read`."""
        data = self.read(name, MAX_DOCUMENT_BYTES)
        return None if data is None else decode_text(data)

    def _check_protection(self) -> None:
        """Raise TextError for a book that is encrypted, except for its fonts."""
        listed = self.read("META-INF/encryption.xml", MAX_DOCUMENT_BYTES)
        methods = re.findall(rb"EncryptionMethod[^>]*Algorithm\s*=\s*[\"']([^\"']*)", listed or b"")
        is_encrypted = any(method.decode("ascii", "replace") not in _FONT_OBFUSCATION for method in methods)
        if is_encrypted or any(member.flag_bits & 1 for member in self._members.values()):
            self._zip.close()
            raise TextError(
                "the book is protected against copying (DRM), so its text cannot be read",
                got=str(self._path),
                allowed="an EPUB without protection",
                fix="Ask the seller for an edition without DRM.",
            )


def resolve(base: str, href: str) -> tuple[str, str]:
    """Return the member and the fragment that a link in the member `base` points to."""
    address, _, fragment = href.partition("#")
    folder = posixpath.dirname(base)
    path = posixpath.normpath(posixpath.join(folder, unquote(address))) if address else base
    return path.lstrip("/"), unquote(fragment)


def broken_epub(path: Path, got: str) -> TextError:
    """Return the error for a file that is no readable EPUB."""
    return TextError(
        "the EPUB cannot be read",
        got=f"{path}: {got}",
        allowed="an EPUB 2 or 3 file",
        fix="Repair it, for example by converting it with Calibre, or save its text as .txt.",
    )
