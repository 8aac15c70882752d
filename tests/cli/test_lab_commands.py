"""The lookup of the commands of nightingale_lab: without the package, and with a broken one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nightingale.cli.commands import LAB_COMMANDS
from nightingale.install import install_command

NO_LAB = """
import sys
sys.modules["nightingale_lab"] = None
from nightingale.cli.main import main
main()
"""


def run_without_lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", NO_LAB, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_lists_the_lab_commands_without_the_lab_package() -> None:
    done = run_without_lab("--help")
    assert done.returncode == 0, done.stderr
    for name in ("say", "serve", *LAB_COMMANDS):
        assert re.search(rf"^  {name} ", done.stdout, re.MULTILINE), name


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("verify", []), ("bench", ["--help"]), ("report", ["-m", "noise", "--no-such"]), ("train", ["stage"])],
)
def test_lab_commands_without_the_lab_package_say_how_to_install_it(name: str, arguments: list[str]) -> None:
    done = run_without_lab(name, *arguments)
    assert done.returncode == 2
    assert f"`nightingale {name}` is not installed" in done.stderr
    assert install_command("lab") in done.stderr
    assert "Traceback" not in done.stderr


def test_error_in_the_lab_package_is_not_hidden(tmp_path: Path) -> None:
    folder = tmp_path / "nightingale_lab" / "cli"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").touch()
    (folder / "verify.py").write_text("import no_such_package\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "nightingale", "--help"]
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=tmp_path)
    assert done.returncode == 1
    assert "no_such_package" in done.stderr
