"""Atomic file writes: a temporary file in the same folder, then a rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile
from typing import BinaryIO

from nightingale.errors import OutputError


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path`; on any failure a file that was there before stays unchanged."""
    with whole_file(path) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` at the end; on any failure the old file stays unchanged."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # A device or a pipe (/dev/null, a fifo) is written to; a rename would replace it.
            with TemporaryFile() as file:
                yield file
                file.seek(0)
                with path.open("wb") as device:
                    shutil.copyfileobj(file, device)
            return
        target = path.resolve()  # through links, so that the link survives
        temporary = target.with_name(f".{target.name}.{token_hex(4)}.part")
        try:
            # Not tempfile: its files are private (0600), and a result should follow the user's umask.
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # a full disk may be reported only here
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            "the file could not be written",
            got=f"{error.strerror or error} for {path}",
            allowed="a path in an existing, writable folder with room on its disk",
            fix="Choose another path, or make room.",
        ) from error
