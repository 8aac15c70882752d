"""`nightingale docs`: the pages that help texts and errors name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nightingale
from nightingale.cli.commands import app

PACKAGE = Path(nightingale.__file__).parent


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["docs", *arguments])
    return done.exit_code, done.output


def test_pages_are_listed_with_their_titles() -> None:
    code, output = run()
    assert code == 0
    assert re.search(r"^running +\S", output, re.MULTILINE)
    assert "internals/" in output


@pytest.mark.parametrize("name", ["text", "docs/text.md", "text.md", "docs/text.md#ssml"])
def test_a_page_is_shown_by_any_of_its_names(name: str) -> None:
    code, output = run(name)
    assert code == 0
    assert "## SSML" in output


def test_an_unknown_page_lists_the_pages() -> None:
    code, output = run("everything")
    assert code == 2
    assert "glossary" in output


def test_every_page_that_the_package_names_can_be_shown() -> None:
    named = {
        match
        for path in PACKAGE.rglob("*.py")
        for match in re.findall(r"\bdocs/([\w/-]+)\.md", path.read_text(encoding="utf-8"))
    }
    assert "text" in named
    listed = run()[1].split()
    assert not named - set(listed)
