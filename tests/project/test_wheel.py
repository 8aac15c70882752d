"""Build the wheel, install it into an empty environment, and speak with it from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import wave
import zipfile
from pathlib import Path

import pytest
from project.source_tree import ROOT

pytestmark = pytest.mark.package
LIMIT_S = 50


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command without the variables that would let it find this checkout."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = ["-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    run(sys.executable, *command, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of a new environment: the wheel, and the dependencies of the running one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    # Folders named in a .pth file are searched, but their own .pth files (an editable install) are not read.
    (packages,) = folder.glob("lib/python*/site-packages")
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    return folder / "bin"


def test_the_wheel_holds_the_product_with_its_weights_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "nightingale/wren/t3.safetensors" in names
    assert "nightingale/py.typed" in names
    assert {name.split("/")[0] for name in names} == {
        "nightingale",
        wheel.name.split("-py3")[0] + ".dist-info",
    }


def test_an_installed_wheel_speaks_in_another_folder(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "python", "-c", "import nightingale; print(nightingale.__file__)", cwd=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(installed.parent)
    run(installed / "nightingale", "say", "Good morning.", "-o", "out.wav", cwd=tmp_path)
    with wave.open(str(tmp_path / "out.wav")) as audio:
        seconds = audio.getnframes() / audio.getframerate()
        assert 0.5 < seconds < 3.0
        assert any(audio.readframes(audio.getnframes()))


def test_without_the_lab_its_commands_say_what_to_install(installed: Path, tmp_path: Path) -> None:
    done = run(installed / "nightingale", "bench", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "nightingale-tts[lab]" in done.stdout + done.stderr
