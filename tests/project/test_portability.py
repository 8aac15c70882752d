"""Rules that keep src/nightingale running on Windows and macOS: modules, text files and renamed files."""

from __future__ import annotations

import ast

import pytest
from project.source_tree import SRC, imports_of, parse, python_files, relative

POSIX_MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
GUARDED = {"src/nightingale/audio/encoders/recording.py"}
"""Files that import a module of POSIX where its absence is handled."""
RENAMES = {"os.replace", "os.rename", "os.link", "os.symlink"}
FILES = [path for path in python_files() if path.is_relative_to(SRC / "nightingale")]


def unnamed_encodings(tree: ast.AST) -> list[int]:
    """Return the lines that read or write text in the encoding of the machine."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if name == "open" and not isinstance(node.func, ast.Name):
            # A path's `open` has the mode first; `open` of other objects has no mode.
            mode = node.args[0] if node.args else None
        elif name == "open":
            mode = node.args[1] if len(node.args) > 1 else ast.Constant(value="r")
        else:
            mode = None
        is_text_file = isinstance(mode, ast.Constant) and mode.value in ("r", "w", "a", "x", "r+", "rt", "wt")
        given = {keyword.arg for keyword in node.keywords}
        decodes = any(
            ast.unparse(keyword) in ("text=True", "universal_newlines=True") for keyword in node.keywords
        )
        positional = {"read_text": 1, "write_text": 2}
        if (is_text_file or name in positional) and "encoding" not in given:
            if len(node.args) < positional.get(name, 9):
                found.append(node.lineno)
        elif decodes and "encoding" not in given:
            found.append(node.lineno)
    return found


def test_only_guarded_code_imports_modules_of_posix() -> None:
    found = {
        relative(path): name
        for path in FILES
        for name in {i.name.split(".")[0] for i in imports_of(parse(path))} & POSIX_MODULES
    }
    assert found.keys() == GUARDED, found


def test_text_files_are_utf_8_on_every_system() -> None:
    found = [f"{relative(path)}:{line}" for path in FILES for line in unnamed_encodings(parse(path))]
    assert not found, f"give encoding='utf-8': {found}"


def test_files_are_renamed_in_one_place() -> None:
    """Windows refuses to replace a file that is open elsewhere; nightingale.files waits for it."""
    found = {
        relative(path)
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in RENAMES
    }
    assert found == {"src/nightingale/files.py"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("path.read_text()", [1]),
        ("path.read_text('utf-8')", []),
        ("path.write_text(text)", [1]),
        ("path.write_text(text, encoding='utf-8')", []),
        ("path.open('a')", [1]),
        ("path.open('rb')", []),
        ("open(path)", [1]),
        ("open(path, 'wb')", []),
        ("subprocess.run(command, text=True)", [1]),
        ("engine.open(text)", []),
        ("tts.say(text=words)", []),
    ],
)
def test_an_encoding_that_is_not_named_is_found(line: str, expected: list[int]) -> None:
    assert unnamed_encodings(ast.parse(line)) == expected
