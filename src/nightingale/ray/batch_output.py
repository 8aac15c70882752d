"""The output folder of a batch, local or at a URL: audio, one record per row, the manifest and the dead letters.

A worker writes the audio of its rows first, and then a file of their records below `records/`. A record says that
its row is done, so an interrupted run loses at most the rows that were being spoken.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final
from uuid import uuid4

from nightingale.errors import OutputError
from nightingale.files import write_whole
from nightingale.voices.remote_voices import open_store

RECORDS: Final = "records"
MANIFEST, PARQUET, DEAD_LETTERS = "manifest.jsonl", "manifest.parquet", "dead-letter.jsonl"
TIMINGS: Final = ("engine_ms", "queue_ms", "ttfa_ms")
"""Columns of the manifest that differ from run to run."""


class BatchOutput:
    """Files below a folder or URL. Each one appears when it is complete."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._store, self._root = open_store(where)
        self._is_local = "file" in _protocols(self._store)

    def check(self) -> None:
        """Raise OutputError if nothing can be written here."""
        name = f".check-{uuid4().hex}"
        self.write(name, b"")
        with self._errors(name):
            self._store.rm_file(self._path(name))

    def write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with self._errors(name):
            if self._is_local:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                write_whole(Path(path), data)
            else:
                self._store.pipe_file(path, data)

    def read(self, name: str) -> bytes:
        with self._errors(name):
            data: bytes = self._store.cat_file(self._path(name))
        return data

    def write_records(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Store the records of rows that are done or have failed."""
        self.write(f"{RECORDS}/{uuid4().hex}.jsonl", to_lines(records))

    def write_shard(self, files: Mapping[str, bytes]) -> str:
        """Store several files as one tar archive; return its name."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(PurePosixPath(name).name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        shard = f"shards/{uuid4().hex}.tar"
        self.write(shard, buffer.getvalue())
        return shard

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield all records of this and of earlier runs."""
        try:
            found = sorted(map(str, self._store.ls(self._path(RECORDS), detail=False)))
        except FileNotFoundError:
            return
        for path in found:
            if path.endswith(".jsonl"):
                with self._errors(path):
                    lines = self._store.cat_file(path).decode().splitlines()
                yield from map(json.loads, lines)

    def finish(self) -> tuple[int, int]:
        """Write the manifest and the dead letters from all records; return how many rows each has.

        Of several records of one row, one that is done counts. Rows are ordered by id and hash, so that the result
        does not depend on the order in which they were spoken.
        """
        latest: dict[tuple[str, str], dict[str, Any]] = {}
        for record in self.records():
            place = (record["id"], record["key"])
            if not latest.get(place, {"error": "none yet"})["error"]:
                continue
            latest[place] = record
        ordered = [latest[place] for place in sorted(latest)]
        done = [
            {k: v for k, v in record.items() if k != "error"} for record in ordered if not record["error"]
        ]
        dead = [
            {k: record[k] for k in ("id", "key", "text", "error")} for record in ordered if record["error"]
        ]
        self.write(MANIFEST, to_lines(done))
        self.write(DEAD_LETTERS, to_lines(dead))
        if done:
            self.write(PARQUET, _to_parquet(done))
        return len(done), len(dead)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _errors(self, name: str) -> _WriteErrors:
        return _WriteErrors(f"{self.where.rstrip('/')}/{name}")


class _WriteErrors:
    """Turns errors of the file system into OutputError."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Stores raise errors of their own classes when they refuse access.
        if isinstance(error, Exception) and not isinstance(error, OutputError):
            import socket

            raise OutputError(
                "the output could not be written or read",
                got=f"{type(error).__name__}: {error} for {self._place} on {socket.gethostname()}",
                allowed="a folder that all nodes share, or a URL that they may write to, with free space",
                fix="Correct it, then run the same command again: what is done is kept.",
            ) from error


def to_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Return records as JSON lines."""
    return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records).encode()


def _to_parquet(records: list[dict[str, Any]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(records), buffer)
    return buffer.getvalue()


def _protocols(store: Any) -> tuple[str, ...]:
    protocol = store.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
