"""Build the wheel, install it into an empty environment, and speak with it from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import wave
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from project.source_tree import ROOT

from nightingale import __version__

pytestmark = pytest.mark.package
LIMIT_S = 50
MAX_WHEEL_BYTES = 44 * 2**20


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
    """Return the bin folder of a new environment: the wheel, and the packages it depends on, without extras."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (built,) = packages.glob("nightingale_tts-*.dist-info")
    for name in needed_by(Distribution.at(built)):
        for part in {file.parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            if not (packages / part).exists():
                (packages / part).symlink_to(distribution(name).locate_file(part))
    return folder / "bin"


def needed_by(package: Distribution) -> set[str]:
    """Return the names of the packages that a package depends on, also indirectly, without extras."""
    found: set[str] = set()
    left = [package]
    while left:
        for wanted in map(Requirement, left.pop().requires or ()):
            if wanted.name not in found and (not wanted.marker or wanted.marker.evaluate({"extra": ""})):
                found.add(wanted.name)
                left.append(distribution(wanted.name))
    return found


def test_the_wheel_holds_the_product_with_its_weights_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "nightingale/wren/t3.safetensors" in names
    assert "nightingale/py.typed" in names
    assert {name.split("/")[0] for name in names} == {
        "nightingale",
        wheel.name.split("-py3")[0] + ".dist-info",
    }


def test_the_wheel_of_the_lab_holds_its_package_with_data_and_a_description(tmp_path: Path) -> None:
    project = ROOT / "src" / "nightingale_lab"
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        tmp_path,
        project,
        cwd=tmp_path,
    )
    (built,) = tmp_path.glob("*.whl")
    archive = zipfile.ZipFile(built)
    about = built.name.split("-py3")[0] + ".dist-info"
    tracked = run("git", "ls-files", "--", project, cwd=ROOT).stdout.split()
    packed = {name.replace("nightingale_lab/", "src/nightingale_lab/", 1) for name in archive.namelist()}
    left_out = {Path(name).name for name in set(tracked) - packed}
    assert left_out == {"LICENSE", "README.md", "pyproject.toml"}
    assert {name.split("/")[0] for name in archive.namelist()} == {"nightingale_lab", about}
    assert "# nightingale-lab" in archive.read(f"{about}/METADATA").decode()
    assert archive.read(f"{about}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_both_commands_are_the_same_program(installed: Path, tmp_path: Path) -> None:
    """`uvx nightingale-tts` and `pipx run nightingale-tts` look for a command with the name of the distribution."""
    said = [
        run(installed / name, "--version", cwd=tmp_path).stdout for name in ("nightingale", "nightingale-tts")
    ]
    assert said == [f"nightingale {__version__}\n"] * 2


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES


def test_an_installed_wheel_speaks_in_another_folder_without_torch(installed: Path, tmp_path: Path) -> None:
    absent = "from importlib.util import find_spec; assert find_spec('torch') is None"
    run(installed / "python", "-c", absent, cwd=tmp_path)
    where = run(installed / "python", "-c", "import nightingale; print(nightingale.__file__)", cwd=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(installed.parent)
    run(installed / "nightingale", "say", "Good morning.", "-o", "out.wav", cwd=tmp_path)
    with wave.open(str(tmp_path / "out.wav")) as audio:
        seconds = audio.getnframes() / audio.getframerate()
        assert 0.5 < seconds < 3.0
        assert any(audio.readframes(audio.getnframes()))


def test_an_installed_wheel_has_the_pages_that_help_names(installed: Path, tmp_path: Path) -> None:
    listed = run(installed / "nightingale", "docs", cwd=tmp_path).stdout
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= set(listed.split())
    shown = run(installed / "nightingale", "docs", "docs/text.md", cwd=tmp_path).stdout
    assert shown == (ROOT / "docs" / "text.md").read_text()


def test_without_the_lab_its_commands_say_what_to_install(
    installed: Path, wheel: Path, tmp_path: Path
) -> None:
    done = run(installed / "nightingale", "bench", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert f"pip install --find-links {wheel.parent} '{wheel}[lab]'" in done.stdout + done.stderr
