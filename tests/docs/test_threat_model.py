"""The threat model names a test for each defence; the tests exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "threat-model.md"


def test_each_test_that_the_threat_model_names_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    found = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(
            r"^\s*(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert len(named) > 40
    assert not named - found


def test_each_defence_has_a_test() -> None:
    rows = [
        row.split("|")[1:-1]
        for section in PAGE.read_text(encoding="utf-8").split("\n## ")
        for row in section.splitlines()
        if "| threat | defence | test |" in section and row.startswith("|") and not row.startswith("|---")
    ]
    rows = [row for row in rows if row[0].strip() != "threat"]
    assert len(rows) > 40
    assert not [row for row in rows if "`test_" not in row[2]]
