"""Export a model for other runtimes: `export_model`, and the registry of formats.

Each format is a module with one function, `export(model, folder, *, note)`. It writes into an empty folder, loads
what it wrote, compares it with the engine, and raises if the two differ.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Final, Protocol, cast

from nightingale.errors import ConfigError, OutputError

Note = Callable[[str], None]
"""Gets a line for each step that takes long."""


class Exporter(Protocol):
    """The interface of a format's module."""

    def export(self, model: str, folder: Path, *, note: Note) -> None:
        """Write a model, by its name or folder, into an empty folder, and check it.

        Raises:
            ConfigError: The model cannot be exported in this format, or a package is missing.
            CheckpointError: What was written differs from the engine.
        """


FORMATS: Final = {
    "onnx": "nightingale.export.onnx",
    "executorch": "nightingale.export.phone.executorch",
    "coreml": "nightingale.export.phone.coreml",
}
"""Format -> its module, which is imported when it is asked for."""


def export_model(model: str, out: Path, *, file_format: str, note: Note = lambda _: None) -> list[Path]:
    """Export a model into a folder, which appears when it is complete; return the files in it.

    Raises:
        ConfigError: The format is unknown, or the model cannot be exported in it.
        CheckpointError: What was written differs from the engine.
        OutputError: The folder exists and is not empty, or it cannot be written.
    """
    if file_format not in FORMATS:
        raise ConfigError("unknown export format", got=repr(file_format), allowed=", ".join(FORMATS))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError("the output is in use", got=str(out), allowed="a new or empty folder")
    exporter = cast("Exporter", import_module(FORMATS[file_format]))
    folder = out.resolve().with_name(f".{out.resolve().name}.{token_hex(4)}.part")
    try:
        folder.mkdir()
        exporter.export(model, folder, note=note)
        if out.exists():
            out.rmdir()
        folder.rename(out.resolve())
    except OSError as error:
        raise OutputError(
            "the export could not be written",
            got=f"{error.strerror or error} for {error.filename or out}",
            allowed="a folder in an existing, writable one with room on its disk",
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return sorted(file for file in out.rglob("*") if file.is_file())
