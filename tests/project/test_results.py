"""Every stored benchmark line has the same fields: kind, command, commit, clean, machine, versions and date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from project.source_tree import ROOT

from nightingale_lab.bench.store import FIELDS, SINCE, append, problems, read_lines, signed

RESULTS = ROOT / "benchmarks" / "results"
FILES = sorted(RESULTS.glob("*.jsonl"))
RIGHT = {
    "kind": "bench",
    "command": "nightingale bench",
    "commit": "0123abc",
    "clean": True,
    "machine": {"cpu": "a processor"},
    "versions": {"python": "3.11"},
    "date": f"{SINCE}T10:00:00+00:00",
}


def test_there_are_results() -> None:
    assert len(FILES) > 15


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_stored_line_has_the_fields(path: Path) -> None:
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = problems(json.loads(text), path.stem)
        assert not found, f"{path.name}:{number}: {found}"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"commit": None}, "commit is None"),
        ({"commit": None, "date": "2026-11-15"}, None),
        ({"commit": "0123abc+"}, "plus"),
        ({"machine": "two cores"}, "machine is 'two cores'"),
        ({"kind": "verify"}, "kind is 'verify'"),
    ],
)
def test_a_wrong_line_is_found(change: dict[str, object], problem: str | None) -> None:
    found = problems(RIGHT | change, "bench")
    assert bool(found) == bool(problem), found
    assert problem is None or problem in found[0]


@pytest.mark.parametrize("name", FIELDS)
def test_a_missing_field_is_found(name: str) -> None:
    line = {key: value for key, value in RIGHT.items() if key != name}
    assert f"{name} is missing" in problems(line, "bench")


def test_what_the_writer_stores_has_the_fields(tmp_path: Path) -> None:
    append(signed({"value": 1}), "some", tmp_path)
    (line,) = read_lines(tmp_path, "some")
    assert not problems(line, "some")
    assert line["value"] == 1
    assert str(Path.home()) not in line["command"]
