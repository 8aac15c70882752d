"""The table of docs/conversion.md has a row for each kind of recordings that was measured, and confuses none."""

from __future__ import annotations

from typing import Any

from nightingale_lab.bench.report.conversion_table import ROWS, conversion


def stored(clips: int, *, live: bool = False, converted: float = 0.02, **more: Any) -> dict[str, Any]:
    rates = {"source": 0.01, "converted": converted}
    return {
        "wer": {"tiny": rates, "base": rates},
        "pairs": [{"to_source": 0.6, "to_target": 0.9}, {"to_source": 0.7, "to_target": 0.8}],
        "nearer_to_target": 2,
        "clips": clips,
        "live": live,
        "model": "wren",
        "command": "python -m it",
        "machine": {"cores": 2, "cpu": "abacus"},
        "commit": "abc",
        "clean": True,
        "date": "2026-01-02T03:04:05",
        **more,
    }


def rows_of(table: str) -> dict[str, list[str]]:
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in table.splitlines()
        if row.startswith("| ")
    ]
    return {row[0]: row[1:] for row in rows[1:]}


def test_the_page_tells_wrens_speech_from_peoples_recordings_and_streams() -> None:
    lines = [
        stored(80),
        stored(20, live=True),
        stored(21, converted=0.5, readers=10),
        stored(9, model="a folder"),
        stored(2, tiny=True),
    ]
    rows = rows_of(conversion(lines))
    own, live, people, _ = ROWS
    assert {name: row[0] for name, row in rows.items()} == {own: "80", live: "20", people: "21"}
    assert rows[own][1:] == ["1.0 %", "2.0 %", "1.0 %", "2.0 %", "0.65", "0.85", "2 of 2"]
    assert rows[people][1:5] == ["1.0 %", "50.0 %", "1.0 %", "50.0 %"]


def test_a_kind_of_recordings_that_was_not_measured_has_no_row() -> None:
    assert list(rows_of(conversion([stored(80)]))) == ["wren's own speech"]
    assert conversion([]) == "*Not measured yet.*"
