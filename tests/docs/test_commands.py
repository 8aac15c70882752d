"""Commands and data in the documents fit the program: options exist, targets exist, TOML and JSON can be read."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main

from nightingale.cli.commands import app

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
SEPARATORS = {"|", "&&", ";", ">", ">>", "<", "2>", "&"}


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (page.name, text)
        for page in PAGES
        for text in re.findall(
            rf"^```(?:{language})\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
    ]


def commands(program: str) -> list[tuple[str, list[str]]]:
    """Return (page, words after the program) of each call of a program in shell blocks."""
    found = []
    for page, text in blocks("sh|bash|powershell"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True, posix=True) if program in line else []
            parts: list[list[str]] = [[]]
            for word in words:
                if word in SEPARATORS:
                    parts.append([])
                else:
                    parts[-1].append(word)
            found += [(page, part[1:]) for part in parts if part and part[0].endswith(program)]
    return found


NIGHTINGALE = commands("nightingale")


def parse(words: list[str]) -> None:
    """Parse a command line as the program does, without running it."""
    command: Any = typer.main.get_command(app)
    context, rest = command.context_class(command, info_name="nightingale"), list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    if not hasattr(command, "commands"):
        command.make_context(name, rest, parent=context)


def test_documents_have_many_commands() -> None:
    assert len(NIGHTINGALE) > 90


@pytest.mark.parametrize(
    ("page", "words"), NIGHTINGALE, ids=[f"{page}: {' '.join(words)[:40]}" for page, words in NIGHTINGALE]
)
def test_a_command_has_options_that_exist(page: str, words: list[str]) -> None:
    parse(words)


@pytest.mark.parametrize("words", [["say", "--nonsense"], ["voices", "fly"], ["say", "a", "--seed", "x"]])
def test_a_wrong_command_is_found(words: list[str]) -> None:
    with pytest.raises(Exception) as found:  # noqa: PT011
        parse(words)
    assert type(found.value).__name__ in ("NoSuchOption", "AssertionError", "BadParameter")


def test_documents_name_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {words[0] for _, words in commands("make") if words}
    named |= {
        name
        for page in PAGES
        for name in re.findall(r"`make ([a-z-]+)[^`]*`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert named <= targets


@pytest.mark.parametrize("language", ["json", "toml"])
def test_data_can_be_read(language: str) -> None:
    found = blocks(language)
    assert found
    for page, text in found:
        try:
            json.loads(text) if language == "json" else tomllib.loads(text)
        except ValueError as error:
            pytest.fail(f"{page}: {error}")
