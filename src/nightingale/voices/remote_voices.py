"""Voices in an object store: any URL that fsspec can open, such as s3://bucket/voices.

Each voice is one object. A lookup asks the store for its version and downloads it if the local copy has another
one, so a voice that one machine adds or deletes is there, or gone, for the next request on any other.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from nightingale.errors import ConfigError, OutputError
from nightingale.files import write_whole
from nightingale.install import install_command

SUFFIX = ".safetensors"
VERSION_FIELDS = (
    "ETag",
    "etag",
    "generation",
    "md5Hash",
    "mtime",
    "LastModified",
    "last_modified",
    "created",
    "size",
)
"""Names that stores have for the version of an object; those that are there are compared together."""


class RemoteVoices:
    """The voices at a URL, and their copies in a local folder."""

    def __init__(self, url: str, folder: Path) -> None:
        self._fs, self._root = open_store(url)
        self._url, self._folder = url, folder

    def refresh(self, name: str) -> None:
        """Make the local copy of a voice what the store has, or remove it if the store has none."""
        try:
            version = _version(self._fs.info(self._path(name)))
        except FileNotFoundError:
            self._forget(name)
            return
        local, stamp = self._folder / f"{name}{SUFFIX}", self._folder / f"{name}.version"
        if local.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == version:
            return
        try:
            data = self._fs.cat_file(self._path(name))
        except FileNotFoundError:  # deleted meanwhile
            self._forget(name)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(local, data)
        write_whole(stamp, version.encode())

    def refresh_all(self) -> None:
        """Refresh all voices of the store, and remove the copies of others."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            found = []
        names = {Path(path).stem for path in found if str(path).endswith(SUFFIX)}
        for name in names | {path.stem for path in self._folder.glob(f"*{SUFFIX}")}:
            self.refresh(name)

    def create(self, name: str, data: bytes, *, replace: bool) -> None:
        """Store a voice; without `replace`, raise FileExistsError if the name is taken."""
        try:
            self._fs.makedirs(self._root, exist_ok=True)
            # "create" is exclusive where the store can say so in one request, as S3, GCS and file systems can.
            self._fs.pipe_file(self._path(name), data, mode="overwrite" if replace else "create")
        except FileExistsError:
            raise
        except OSError as error:
            fix = "Check the address and the rights."
            raise OutputError(
                "the voice could not be stored", got=f"{self._url}: {error}", fix=fix
            ) from error
        self.refresh(name)

    def remove(self, name: str) -> None:
        """Delete a voice from the store."""
        self._fs.rm_file(self._path(name))
        self._forget(name)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}{SUFFIX}"

    def _forget(self, name: str) -> None:
        for suffix in (SUFFIX, ".version"):
            (self._folder / f"{name}{suffix}").unlink(missing_ok=True)


@cache
def remote_voices(url: str, folder: Path) -> RemoteVoices:
    """Return the voices at a URL; the connection is opened once."""
    return RemoteVoices(url, folder)


def open_store(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        fix = install_command("ray")
        raise ConfigError(
            "the package fsspec, which opens URLs, is not installed", got=url, fix=fix
        ) from error
    try:
        # Without listings that are kept: other machines write here.
        store, path = url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            "this address cannot be opened",
            got=f"{url}: {error}",
            allowed="a folder, or a URL of a file system that fsspec knows, such as s3://bucket/folder",
            fix="Install the package that the message names, such as s3fs or gcsfs.",
        ) from error
    return store, str(path).rstrip("/")


def _version(info: dict[str, Any]) -> str:
    fields = {key: str(info[key]) for key in VERSION_FIELDS if info.get(key) is not None}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
