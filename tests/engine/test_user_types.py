"""Type checkers in strict mode accept a user's program, and find its mistakes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("user_script.py")
MISTAKES = """
from nightingale import TTS

tts = TTS("wren", profil="fast")
tts.say(5)
tts.say("Hello.", temprature=0.5)
tts.say_many(["Hello."], seed="1")
tts.voice(3.5)
"""
MISTAKEN_LINES = (5, 6, 7, 8)
"""Lines of `MISTAKES` that a checker must report. Options of a model are open, so not the fourth."""


def mypy(path: Path, cache: Path) -> str:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(cache),
        str(path),
    ]
    # Only errors in the user's own file: what strict mode says of the package is the project's own check.
    return subprocess.run([*command, "--follow-imports=silent"], capture_output=True, text=True).stdout


def pyright(path: Path) -> str:
    program = shutil.which("pyright")
    if program is None:
        pytest.skip("pyright is not installed")
    settings = path.parent / "pyrightconfig.json"
    settings.write_text('{"typeCheckingMode": "strict"}')
    command = [program, "--pythonpath", sys.executable, "--project", str(settings), str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=path.parent).stdout


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_accepts_a_users_program_and_finds_mistakes(checker: str, tmp_path: Path) -> None:
    right, wrong = tmp_path / "program.py", tmp_path / "mistakes.py"
    right.write_text(SCRIPT.read_text())
    wrong.write_text(MISTAKES)

    def check(path: Path) -> str:
        return mypy(path, tmp_path / "cache") if checker == "mypy" else pyright(path)

    said = check(right)
    assert "Success: no issues" in said or "0 errors, 0 warnings" in said, said
    said = check(wrong)
    for line in MISTAKEN_LINES:
        assert f"mistakes.py:{line}:" in said, said
