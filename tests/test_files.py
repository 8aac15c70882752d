"""Files are replaced as a whole, also where another program holds them, or where there are no hard links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nightingale import files
from nightingale.errors import OutputError


def held(code: int) -> PermissionError:
    """Return the error that Windows raises for a file that another program has open."""
    error = PermissionError(13, "The process cannot access the file")
    error.winerror = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("code", [5, 32])
def test_a_file_that_another_program_holds_for_a_moment_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    rename, failures = os.replace, [held(code), held(code)]

    def replace(source: Path, target: Path) -> None:
        if failures:
            raise failures.pop()
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(files, "REPLACE_PAUSES_S", (0.0, 0.0, 0.0))
    (tmp_path / "voice").write_bytes(b"old")
    files.write_whole(tmp_path / "voice", b"new")
    assert (tmp_path / "voice").read_bytes() == b"new"
    assert not failures


@pytest.mark.parametrize(("error", "attempts"), [(PermissionError(13, "no rights"), 1), (held(32), 3)])
def test_a_file_that_stays_closed_to_us_is_an_error_and_keeps_its_contents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError, attempts: int
) -> None:
    asked: list[Path] = []

    def replace(source: Path, target: Path) -> None:
        asked.append(target)
        raise error

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(files, "REPLACE_PAUSES_S", (0.0, 0.0))
    (tmp_path / "voice").write_bytes(b"old")
    with pytest.raises(OutputError):
        files.write_whole(tmp_path / "voice", b"new")
    assert len(asked) == attempts
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_without_hard_links_a_new_file_is_still_created_only_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    files.write_whole(tmp_path / "voice", b"first", replace=False)
    with pytest.raises(FileExistsError):
        files.write_whole(tmp_path / "voice", b"second", replace=False)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"first"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("con", True), ("NUL.wav", True), ("com1", True), ("lpt9.tar.gz", True), ("aux ", True)]
    + [(name, False) for name in ("console", "com", "com10", "emma", "a.con", "")],
)
def test_names_that_windows_takes_for_devices_are_known(name: str, expected: bool) -> None:
    assert files.is_device_name(name) is expected
