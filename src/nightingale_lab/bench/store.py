"""The results files: `benchmarks/results/<kind>.jsonl`, one line per run. Every line has the fields of `FIELDS`.

Only a checkout has that folder. An installed package stores nothing unless it is given one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "onnxruntime", "safetensors")
FIELDS: Mapping[str, type] = {
    "kind": str,
    "command": str,
    "commit": str,
    "clean": bool,
    "machine": dict,
    "versions": dict,
    "date": str,
}
"""Fields of every line. `clean` is false if tracked files differed from the commit."""
SINCE = "2026-11-18"
"""Lines before this date may have null where a value was not recorded."""


def checkout() -> Path | None:
    """Return the root of the repository that this package runs from, if it does."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / ".git").exists() and (root / "benchmarks").is_dir() else None


def results_folder() -> Path | None:
    root = checkout()
    return root / "benchmarks" / "results" if root else None


def commit() -> tuple[str, bool]:
    """Return the commit of the checkout, and whether all tracked files are those of the commit.

    The results files themselves do not count: the run before may have added a line.
    """
    root = checkout()
    if root is None:
        return "installed package", True
    head = _output(["git", "rev-parse", "--short", "HEAD"], root)
    unchanged = ["--", ".", ":!benchmarks/results"]
    changed = _output(["git", "status", "--porcelain", "--untracked-files=no", *unchanged], root)
    return head or "unknown", bool(head) and not changed


def command() -> str:
    """Return the command line of this process, with the last part of paths only."""
    program, *arguments = sys.argv
    main = getattr(sys.modules["__main__"], "__spec__", None)
    module = main.name.removesuffix(".__main__") if main else None
    if Path(program).name == "nightingale" or module == "nightingale":
        begin = "nightingale"
    elif module is not None:
        begin = f"python -m {module}"
    else:
        path, root = Path(program).resolve(), checkout()
        begin = f"python {path.relative_to(root) if root and path.is_relative_to(root) else path.name}"
    return " ".join([begin, *(Path(word).name if Path(word).is_absolute() else word for word in arguments)])


def commit_label(line: Mapping[str, Any]) -> str:
    """Return the commit of a line, with a plus if files were changed."""
    return f"{line.get('commit') or '?'}{'+' if line.get('clean') is False else ''}"


def _output(command: list[str], folder: Path | None = None) -> str:
    """Return what a command prints; nothing if it fails."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def cpu_name() -> str:
    """Return the processor's name. `lscpu` knows those of ARM too, which /proc/cpuinfo does not."""
    for command, key in ((["lscpu"], "Model name"), (["sysctl", "machdep.cpu.brand_string"], "machdep")):
        for line in _output(command).splitlines():
            name, colon, value = line.partition(":")
            if colon and name.strip().startswith(key):
                return value.strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """Describe the machine. Its load shows whether other programs ran."""
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    found: dict[str, Any] = {
        "system": platform.system(),
        "arch": platform.machine(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads() if torch else os.cpu_count(),
    }
    if hasattr(os, "getloadavg"):
        found["load_1m"] = round(os.getloadavg()[0], 1)
    if torch and torch.cuda.is_available():
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
    """Return the result with command, commit, machine, versions and date added."""
    head, clean = commit()
    return {
        **result,
        "command": command(),
        "commit": head,
        "clean": clean,
        "machine": machine(),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def append(line: Mapping[str, Any], kind: str, folder: Path | None) -> Path | None:
    """Append a line to `<kind>.jsonl`. Does nothing without a folder."""
    if folder is None:
        return None
    line = {"kind": kind, **line}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return path


def problems(line: Mapping[str, Any], kind: str) -> list[str]:
    """Return what is wrong with the fields of a line of `<kind>.jsonl`."""
    found = [f"{name} is missing" for name in FIELDS if name not in line]
    old = str(line.get("date", "")) < SINCE
    for name in FIELDS.keys() & line.keys():
        value, expected = line[name], FIELDS[name]
        if not (isinstance(value, expected) or (value is None and old)):
            found.append(f"{name} is {value!r}, not {expected.__name__}")
    if line.get("kind") != kind:
        found.append(f"kind is {line.get('kind')!r} in {kind}.jsonl")
    if str(line.get("commit")).endswith("+"):
        found.append("commit ends with a plus, and not clean is false")
    return found


def read_lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the lines of `<kind>.jsonl`, oldest first, without those that a full disk cut short."""
    path = folder / f"{kind}.jsonl"
    lines: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines
