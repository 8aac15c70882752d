"""The registry of export formats: what is refused, and that nothing incomplete is left behind."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from nightingale.errors import CheckpointError, ConfigError, OutputError
from nightingale.export import FORMATS, Note, export_model


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Register a format that writes one file; append to the list to make it fail after that."""
    module, failing = ModuleType("fake_format"), list[bool]()

    def export(model: str, folder: Path, *, note: Note) -> None:
        note("writing")
        (folder / "graph.onnx").write_text(model)
        if failing:
            raise CheckpointError("the export differs from the engine")

    module.__dict__["export"] = export
    monkeypatch.setitem(sys.modules, "fake_format", module)
    monkeypatch.setitem(FORMATS, "fake", "fake_format")
    return failing


@pytest.mark.usefixtures("fails")
@pytest.mark.parametrize("exists", [False, True])
def test_an_export_appears_in_a_new_or_empty_folder(tmp_path: Path, exists: bool) -> None:
    out, notes = tmp_path / "out", list[str]()
    if exists:
        out.mkdir()
    assert export_model("wren", out, file_format="fake", note=notes.append) == [out / "graph.onnx"]
    assert (out / "graph.onnx").read_text() == "wren"
    assert notes == ["writing"]


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, fails: list[bool]) -> None:
    fails.append(True)
    with pytest.raises(CheckpointError, match="differs from the engine"):
        export_model("wren", tmp_path / "out", file_format="fake")
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="onnx, executorch"):
        export_model("wren", tmp_path / "out", file_format="tflite")


@pytest.mark.usefixtures("fails")
def test_files_that_exist_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(OutputError, match="in use"):
            export_model("wren", out, file_format="fake")
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.usefixtures("fails")
def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file"):
        export_model("wren", tmp_path / "missing" / "out", file_format="fake")
