"""`nightingale say --batch`: a file of texts to a folder of recordings, with a manifest, and resumable.

manifest.jsonl in the folder has one line for each text, written when its recording is complete. A text whose line
is there, made with the same settings, and whose recording exists is not spoken again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nightingale.cli.console import note
from nightingale.errors import ConfigError, NightingaleError, OutputError, TextError
from nightingale.files import is_device_name
from nightingale.request_options import NUMBERS

if TYPE_CHECKING:
    from nightingale.engine import TTS
    from nightingale.types import Audio

MANIFEST = "manifest.jsonl"
COLUMNS = ("text", "id", "voice", "language", *NUMBERS)
"""Columns of a CSV file, and keys of a line of JSON."""
MAX_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """One text of a batch."""

    id: str
    """The name of its recording, without the suffix."""
    text: str
    controls: Mapping[str, Any]
    """Arguments of `TTS.say`: those of the command, replaced by those of the line."""

    def key(self, **settings: Any) -> str:
        """Return a digest of all that the recording depends on."""
        given = {name: value for name, value in self.controls.items() if value is not None}
        whole = {"text": self.text, **given, **settings}
        return hashlib.sha256(json.dumps(whole, sort_keys=True, default=str).encode()).hexdigest()[:16]


def read_lines(path: Path, controls: Mapping[str, Any]) -> list[BatchLine]:
    """Return the texts of a .txt, .csv or .jsonl file. Raise ConfigError or TextError if it is not valid."""
    readers: dict[str, Callable[[str], Iterator[tuple[int, dict[str, Any]]]]] = {
        ".txt": _text_rows,
        ".csv": _csv_rows,
        ".jsonl": _json_rows,
    }
    if path.suffix.lower() not in readers:
        raise ConfigError(
            "not a kind of batch file", got=str(path), allowed=", ".join(readers), param="batch"
        )
    try:
        contents = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise TextError("the batch file cannot be read", got=f"{path}: {error}", fix="Check it.") from error
    lines: dict[str, BatchLine] = {}
    for number, row in readers[path.suffix.lower()](contents):
        line = _line(f"{path.name}, line {number}", f"{len(lines) + 1:04}", row, controls)
        if line.id in lines:
            raise ConfigError(
                "two lines have the same id", got=f"{line.id!r} in line {number}", param="batch"
            )
        lines[line.id] = line
    if not lines:
        raise TextError("the batch file has no texts", got=str(path))
    return list(lines.values())


def speak_batch(
    tts: TTS,
    lines: list[BatchLine],
    folder: Path,
    suffix: str,
    *,
    bit_rate: int | None,
    settings: Mapping[str, Any],
    on_line: Callable[[int], None],
) -> tuple[int, int]:
    """Write the recordings that are not there yet; return how many were written and how many failed.

    settings: What the recordings depend on besides the model, the format and the controls.
    on_line: called with the number of lines that are done, those before included.
    """
    from nightingale.audio.encoders.recording import recording

    folder.mkdir(parents=True, exist_ok=True)
    model = {"model": tts.name, "fingerprint": tts.fingerprint}
    settings = {**settings, **model, "suffix": suffix, "bit_rate": bit_rate}
    done = _read_manifest(folder)
    wanted = [line for line in lines if done.get(line.id) != line.key(**settings)]
    written = failed = 0
    on_line(len(lines) - len(wanted))
    try:
        manifest = (folder / MANIFEST).open("a", encoding="utf-8", newline="\n")
    except OSError as error:
        raise OutputError(
            "the manifest cannot be written", got=str(error), allowed="a writable folder"
        ) from error
    threads = min(tts.at_once, MAX_THREADS)
    with manifest, ThreadPoolExecutor(threads) as pool:
        for line, result in _in_order(pool, tts, wanted, threads):
            entry: dict[str, Any] = {"id": line.id, "text": line.text}
            entry |= {name: value for name, value in line.controls.items() if value is not None}
            try:
                audio = result.result()
                file = folder / f"{line.id}{suffix}"
                with recording(file, audio.sample_rate_hz, bit_rate) as recorder:
                    recorder.feed(audio.samples)
                entry |= {"file": file.name, "seed": audio.seed, "audio_seconds": round(audio.seconds, 3)}
                entry |= {"sha256": audio.sha256, "key": line.key(**settings)}
                if audio.warnings:
                    entry["warnings"] = list(map(str, audio.warnings))
                for warning in audio.warnings:
                    note(f"{line.id}: warning: {warning}")
                written += 1
            except TextError as error:  # of this line alone; others end the batch
                entry["error"] = str(error)
                note(f"{line.id}: {error}")
                failed += 1
            manifest.write(json.dumps(entry, ensure_ascii=False) + "\n")
            manifest.flush()
            on_line(len(lines) - len(wanted) + written + failed)
    return written, failed


def _in_order(
    pool: ThreadPoolExecutor, tts: TTS, lines: list[BatchLine], ahead: int
) -> Iterator[tuple[BatchLine, Future[Audio]]]:
    """Yield lines with their audio in order, while the next ones are spoken."""
    waiting: deque[tuple[BatchLine, Future[Audio]]] = deque()
    try:
        for line in lines:
            if len(waiting) == ahead:
                yield waiting.popleft()
            waiting.append((line, pool.submit(tts.say, line.text, **line.controls)))
        while waiting:
            yield waiting.popleft()
    finally:
        for _, future in waiting:
            future.cancel()


def _read_manifest(folder: Path) -> dict[str, str]:
    """Return id -> key of the recordings that are complete. A line that was cut off counts as missing."""
    path = folder / MANIFEST
    if not path.is_file():
        return {}
    found: dict[str, str] = {}
    contents = path.read_bytes()
    for line in contents.splitlines():
        try:
            entry = json.loads(line)
            if "key" in entry and (folder / entry["file"]).is_file():
                found[entry["id"]] = entry["key"]
        except (ValueError, KeyError, TypeError):
            continue
    if contents and not contents.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
    return found


def _text_rows(contents: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(contents.splitlines(), start=1):
        if line.strip():
            yield number, {"text": line.strip()}


def _csv_rows(contents: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(contents, newline=""), strict=True)
    try:
        for row in reader:
            yield reader.line_num, {name: value for name, value in row.items() if value != ""}
    except csv.Error as error:
        raise ConfigError("not valid CSV", got=f"{error} in line {reader.line_num}", param="batch") from error


def _json_rows(contents: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(contents.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError("not valid JSON", got=f"{error} in line {number}", param="batch") from error
        if not isinstance(row, dict):
            raise ConfigError(
                "a line is not a JSON object", got=f"{line[:40]} in line {number}", param="batch"
            )
        yield number, row


def _line(where: str, number: str, row: dict[Any, Any], controls: Mapping[str, Any]) -> BatchLine:
    from nightingale.engine.requests.controls import check_control

    row = {name: value for name, value in row.items() if value is not None}
    if unknown := [str(name) for name in row if name not in COLUMNS]:
        got = f"{', '.join(unknown)} in {where}"
        raise ConfigError("unknown column", got=got, allowed=", ".join(COLUMNS), param="batch")
    text, name = row.pop("text", None), str(row.pop("id", number))
    if not isinstance(text, str) or not text.strip():
        raise TextError("a line has no text", got=f"{text!r} in {where}", allowed="a column text")
    if not re.fullmatch(r"\w[\w.-]{0,99}", name) or is_device_name(name):
        allowed = "letters, digits, _, - and ., and no name of a Windows device (con, nul, com1)"
        raise ConfigError("not an id", got=f"{name!r} in {where}", allowed=allowed)
    own: dict[str, Any] = {}
    for control, value in row.items():
        try:
            own[control] = NUMBERS[control].kind(value) if control in NUMBERS else str(value)
            if control in NUMBERS:
                check_control(control, own[control])
        except (ValueError, TypeError) as error:
            got = f"{value!r} in {where}"
            raise ConfigError(f"{control} is not a number", got=got, param=control) from error
        except NightingaleError as error:
            got = f"{error.got} in {where}"
            raise ConfigError(error.what, got=got, allowed=error.allowed, param=control) from error
    return BatchLine(id=name, text=text, controls={**controls, **own})
