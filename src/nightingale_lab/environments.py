"""Virtual environments for programs whose packages must stay out of ours: judges, peers and upstream."""

from __future__ import annotations

import hashlib
import os
import subprocess
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nightingale.errors import EngineFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The recipe of an environment. Every package is pinned."""

    packages: tuple[str, ...]
    without_dependencies: tuple[str, ...] = ()
    """Packages whose own requirements contradict the others or ask for CUDA."""
    removed: tuple[str, ...] = ()
    """Glob patterns of files that are deleted after the installation."""

    @property
    def fingerprint(self) -> str:
        """Changes when the environment must be made anew."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


def python_in(home: Path) -> Path:
    return home / "bin" / "python"


def pip(home: Path, *arguments: str) -> None:
    """Run pip in an environment. `$PIP_ARGS` adds arguments, such as an index without CUDA.

    Raises:
        EngineFault: pip failed; the error holds the end of its output.
    """
    verb, *rest = arguments
    more = os.environ.get("PIP_ARGS", "").split()
    command = [str(python_in(home)), "-m", "pip", "--disable-pip-version-check", "-q", verb, *more, *rest]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineFault(
            f"the environment {home} could not be made",
            got=done.stderr.strip()[-2000:],
            fix="Check the network.",
        )


def make(
    environment: Environment,
    home: Path,
    *,
    say: Callable[[str], object] = lambda _: None,
) -> Path:
    """Create the environment unless an equal one is there, and return its Python."""
    stamp = home / ".installed"
    if not (stamp.is_file() and stamp.read_text() == environment.fingerprint):
        say(f"making the environment {home} …")
        venv.create(home, with_pip=True, clear=True)
        if environment.packages:
            pip(home, "install", *environment.packages)
        if environment.without_dependencies:
            pip(home, "install", "--no-deps", *environment.without_dependencies)
        for pattern in environment.removed:
            for path in home.glob(pattern):
                path.unlink()
        stamp.write_text(environment.fingerprint)
    return python_in(home)
