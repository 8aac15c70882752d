"""Atomic file writes: a temporary file in the same folder, then a rename."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile
from typing import BinaryIO, Final

from nightingale.errors import ConfigError, OutputError, wrong_type

HELD_BY_ANOTHER_PROGRAM: Final = (5, 32)
"""Windows' errors for a file that a virus scanner or a reader has open: access denied, sharing violation."""
REPLACE_PAUSES_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def as_path(path: object) -> Path:
    """Return what a caller gave as a path; raise ConfigError if it cannot be one."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise wrong_type("path", path, "a string or a pathlib.Path")
    if "\0" in os.fspath(path):
        raise ConfigError("a path cannot hold a null character", got=ascii(path), param="path")
    return Path(path)


def is_device_name(name: str) -> bool:
    """Return whether Windows takes a file of this name for a device, whatever its suffix: con, nul.wav, com1."""
    stem = name.partition(".")[0].rstrip(" ").lower()
    return re.fullmatch(r"con|prn|aux|nul|(com|lpt)[0-9¹²³]", stem) is not None


def default_config() -> Path:
    """Return the path of nightingale.toml, the user's defaults for commands and settings of the server."""
    import platformdirs  # late, since the base of all packages should import little

    return Path(platformdirs.user_config_dir("nightingale")) / "nightingale.toml"


def write_whole(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write `data` to `path`; on any failure a file that was there before stays unchanged.

    Without `replace`, raise FileExistsError if the path exists: of several writers, also on other machines that
    share the folder, exactly one succeeds.
    """
    with whole_file(path, replace=replace) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path, *, replace: bool = True) -> Iterator[BinaryIO]:
    """Yield a file that becomes `path` at the end; on any failure, a file that was there stays unchanged."""
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
            if replace:
                replace_file(temporary, target)
            else:
                _create_file(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise
    except OSError as error:
        raise OutputError(
            "the file could not be written",
            got=f"{error.strerror or error} for {path}",
            allowed="a path in an existing, writable folder with room on its disk",
            fix="Choose another path, or make room.",
        ) from error


def replace_file(source: Path, target: Path) -> None:
    """Rename a file over another. On Windows, wait up to a second for programs that have the other one open."""
    for pause_s in REPLACE_PAUSES_S:
        try:
            os.replace(source, target)
            return
        except PermissionError as error:
            if getattr(error, "winerror", None) not in HELD_BY_ANOTHER_PROGRAM:
                raise
        time.sleep(pause_s)
    os.replace(source, target)


def _create_file(source: Path, target: Path) -> None:
    """Give a file its name, if no other file has it; raise FileExistsError if one has."""
    try:
        os.link(source, target)  # atomic, on NFS too
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links, such as exFAT
        target.open("xb").close()  # one writer succeeds; until the next line, readers see an empty file
        replace_file(source, target)


def remove_unfinished(folder: Path, names: str) -> None:
    """Remove what killed processes left of `whole_file`; `names` is a glob pattern of the files they were writing."""
    for path in folder.glob(f".{names}.{'?' * 8}.part"):
        path.unlink(missing_ok=True)
