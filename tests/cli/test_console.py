"""The progress line is drawn and erased on any terminal, without escape sequences."""

from __future__ import annotations

import io
import sys

import pytest

from nightingale.cli.console import progress_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> str:
        """Return the line that a terminal shows after what was written."""
        shown: list[str] = []
        column = 0
        for character in self.getvalue():
            if character == "\r":
                column = 0
            else:
                shown[column : column + 1] = [character]
                column += 1
        return "".join(shown)


def test_the_progress_line_shows_the_latest_progress_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_line("speaking", quiet=False) as show:
        show("[####] 100%")
        show("done")
        assert terminal.screen().rstrip() == "speaking done"
    assert not terminal.screen().strip()
    assert terminal.getvalue().endswith("\r")
    assert "\x1b" not in terminal.getvalue()
