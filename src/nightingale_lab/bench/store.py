"""Where results go, and what each must carry to be worth anything later: machine, commit, versions.

Lines are appended to `benchmarks/results/<kind>.jsonl`, in a checkout only; an installed package has no such
folder and keeps nothing unless it is told where.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors")


def checkout() -> Path | None:
    """The root of the repository this package is run from, if it is."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / ".git").exists() and (root / "benchmarks").is_dir() else None


def results_folder() -> Path | None:
    root = checkout()
    return root / "benchmarks" / "results" if root else None


def commit() -> str:
    """Of the checkout, with a plus if something is changed in it."""
    root = checkout()
    if root is None:
        return "installed package"
    try:
        head = _git(root, "rev-parse", "--short", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def cpu_name() -> str:
    """The processor's name where the system tells it; `lscpu` knows ARM's, /proc/cpuinfo x86's."""
    for command, key in ((["lscpu"], "Model name"), (["sysctl", "machdep.cpu.brand_string"], "machdep")):
        try:
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        for line in told.splitlines():
            name, colon, value = line.partition(":")
            if colon and name.strip().startswith(key):
                return value.strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """What ran it. The load tells whether it was alone."""
    found: dict[str, Any] = {
        "system": platform.system(),
        "arch": platform.machine(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
    }
    if hasattr(os, "getloadavg"):
        found["load_1m"] = round(os.getloadavg()[0], 1)
    import torch

    found["threads"] = torch.get_num_threads()
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(0)
    return found


def versions() -> dict[str, str]:
    from nightingale import __version__

    found = {"nightingale": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def signed(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result with where, when and with what it was made."""
    return {
        **result,
        "machine": machine(),
        "commit": commit(),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def append(line: Mapping[str, Any], kind: str, folder: Path | None) -> Path | None:
    """One line more in `<kind>.jsonl`; nothing where there is no folder for results."""
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return path


def read_lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of `<kind>.jsonl`, oldest first; one that a full disk cut short is left out."""
    path = folder / f"{kind}.jsonl"
    lines: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines
