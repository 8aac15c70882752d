"""Build wheel and sdist of both distributions, check them, and try them in clean environments: `make release-check`.

For each distribution: the wheel that is built from the sdist must have the same files as the wheel that is built
from the checkout, `twine check --strict` and `check-wheel-contents` must accept them. For each supported Python
that is found: `pip install` of the wheel into an empty environment, `nightingale say`, then `pip install` of the
second distribution, and one of its commands. What is built stays in dist/.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import wave
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECTS = {"nightingale_tts": ROOT, "nightingale_lab": ROOT / "src" / "nightingale_lab"}
HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "NIGHTINGALE_HOME")
"""Variables that would let a command find this checkout."""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without the variables of this checkout, and return what it printed. Exit if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, encoding="utf-8"
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def wheel_files(wheel: Path) -> dict[str, int]:
    """Return the checksum of each file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.CRC for info in archive.infolist()}


def differences(one: dict[str, int], other: dict[str, int]) -> list[str]:
    """Return the names of the files that only one of two wheels has, or that differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def build(name: str, project: Path, dist: Path, scratch: Path) -> Path:
    """Build sdist and wheel to `dist`, and compare the wheel with one that is built from the sdist; return it."""
    for kind in ("--sdist", "--wheel"):
        run(sys.executable, "-m", "build", kind, "--outdir", dist, project, cwd=scratch)
    (sdist,), (wheel,) = dist.glob(f"{name}-*.tar.gz"), dist.glob(f"{name}-*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
    unpacked = scratch / sdist.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", scratch, unpacked, cwd=scratch)
    if found := differences(wheel_files(wheel), wheel_files(scratch / wheel.name)):
        sys.exit(f"the wheel from {sdist.name} differs from {wheel.name}: {', '.join(found)}")
    print(
        f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB; its wheel equals the one from the checkout",
        flush=True,
    )
    return wheel


def supported_versions() -> list[str]:
    """Return the versions of Python that pyproject.toml names, such as 3.11."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return re.findall(r":: Python :: (3\.\d+)", "\n".join(project["classifiers"]))


def find_python(version: str) -> Path | None:
    """Return an interpreter of this version, on the PATH or among those of pyenv, that can make environments."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{version}")
    candidates = [Path(on_path)] if on_path else []
    candidates += sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)
    test = f"import ensurepip, ssl, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for path in candidates:
        if subprocess.run([path, "-c", test], capture_output=True, check=False).returncode == 0:
            return path
    return None


def check_speech(path: Path) -> float:
    """Return the seconds of a recording; exit if it is silent, or too short or long for two words."""
    with wave.open(str(path)) as audio:
        seconds = audio.getnframes() / audio.getframerate()
        if not 0.5 < seconds < 3.0 or not any(audio.readframes(audio.getnframes())):
            sys.exit(f"{path.name} has {seconds:.1f} s, or only silence")
    return seconds


def try_wheels(python: Path, wheels: dict[str, Path], pip_args: list[str], scratch: Path) -> None:
    """Install the wheels into a new environment, one after the other, and run a command of each."""
    folder = scratch / "environment"
    run(python, "-m", "venv", folder, cwd=scratch)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = (scripts / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *pip_args)
    version = wheels["nightingale_tts"].name.split("-")[1]
    run(*pip, wheels["nightingale_tts"], cwd=scratch)
    said = run(scripts / "nightingale", "--version", cwd=scratch).strip()
    if said != f"nightingale {version}":
        sys.exit(f"`nightingale --version` printed {said!r}, and the wheel has version {version}")
    run(scripts / "nightingale", "say", "Good morning.", "-o", "out.wav", cwd=scratch)
    seconds = check_speech(scratch / "out.wav")
    # Before PyTorch comes: a package of CUDA names a platform that pip does not know.
    run(scripts / "python", "-m", "pip", "check", cwd=scratch)
    run(*pip, wheels["nightingale_lab"], "--find-links", wheels["nightingale_tts"].parent, cwd=scratch)
    if "--peer" not in run(scripts / "nightingale", "bench", "--help", cwd=scratch):
        sys.exit("`nightingale bench --help` does not list its options")
    print(f"{python}: both wheels installed, {seconds:.1f} s spoken", flush=True)


def main() -> None:
    """Build, check and try; the first failure ends the program with exit code 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "versions", nargs="*", help="versions of Python that must be tried; all that are found"
    )
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the built files stay")
    parser.add_argument("--pip-args", default="", help="more arguments for pip, such as an index")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.dist, ignore_errors=True)
    wheels = {}
    for name, project in PROJECTS.items():
        with tempfile.TemporaryDirectory() as scratch:
            wheels[name] = build(name, project, arguments.dist, Path(scratch))
    built = [path for path in arguments.dist.iterdir() if path.suffix in (".whl", ".gz")]
    print(run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *built, cwd=ROOT), end="")
    print(run(sys.executable, "-m", "check_wheel_contents", *wheels.values(), cwd=ROOT), end="")
    for version in arguments.versions or supported_versions():
        python = find_python(version)
        if python is None and arguments.versions:
            sys.exit(f"Python {version} was not found")
        if python is None:
            print(f"Python {version} was not found, so the wheels were not tried with it")
            continue
        with tempfile.TemporaryDirectory() as scratch:
            try_wheels(python, wheels, arguments.pip_args.split(), Path(scratch))


if __name__ == "__main__":
    main()
