"""Make the folder of upstream's packages that `--upstream DIR` of the CPU and GPU scripts takes.

    make upstream-env DIR=upstream            # downloads 15 MB from PyPI, leaves 15 MiB

The folder holds Python files only: chatterbox-tts and what its synthesis imports, without torch, numpy and
safetensors, which the process that compares has already. So a folder made on any machine can be copied to any
other, and needs no network there. Compiled modules are removed (they only make the same code faster), and so
are the models of transformers and the pipelines of diffusers that upstream does not import. At the end the
folder is imported in a process of its own that sees nothing else (upstream_side.py --check).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nightingale_lab.bench.runner import report
from nightingale_lab.upstream.families import PACKAGES, WITHOUT_DEPENDENCIES

SYNTHESIS = ("chatterbox-tts", "s3tokenizer", "conformer", "transformers", "diffusers", "einops")
"""Packages of upstream's environment, with the versions of `nightingale_lab/upstream/families.py`."""
IMPORTED = (
    "huggingface_hub==1.33.0", "httpx==0.28.1", "httpcore==1.0.9", "h11==0.16.0", "anyio==4.16.0",
    "idna==3.20", "certifi==2026.10.18", "pyyaml==6.0.3", "packaging==26.3", "tqdm==4.70.1",
)  # fmt: skip
"""Packages that transformers and diffusers import."""
KEPT_MODELS = frozenset({"auto", "gpt2", "llama"})
REMOVED = ("bin", "_yaml", "diffusers/pipelines", "diffusers/schedulers", "huggingface_hub/templates")
LIMIT_MIB = 64


def pinned() -> list[str]:
    """Return every package of the folder with its version."""
    known = {pin.partition("==")[0]: pin for pin in (*PACKAGES, *WITHOUT_DEPENDENCIES)}
    return [*(known[name] for name in SYNTHESIS), *IMPORTED]


def install(folder: Path) -> None:
    """Install the packages into an empty folder. `$PIP_ARGS` adds arguments, such as another index."""
    more = os.environ.get("PIP_ARGS", "").split()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *more]
    subprocess.run([*command, "--no-deps", "--no-compile", "--target", str(folder), *pinned()], check=True)


def prune(folder: Path) -> None:
    """Remove compiled modules, and what upstream does not import."""
    unused = [folder / name for name in REMOVED]
    unused += [
        path
        for path in (folder / "transformers" / "models").iterdir()
        if path.is_dir() and path.name not in KEPT_MODELS
    ]
    for path in unused:
        shutil.rmtree(path, ignore_errors=True)
    for path in [*folder.rglob("*.so"), *folder.rglob("*.pyd"), *folder.rglob("*.pyx")]:
        path.unlink()


def mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    if folder.exists() and not (folder / "chatterbox").is_dir() and any(folder.iterdir()):
        parser.error(f"{folder} holds something else: name a new folder")
    shutil.rmtree(folder, ignore_errors=True)
    install(folder)
    prune(folder)
    size = mib(folder)
    if size > LIMIT_MIB:
        sys.exit(f"{folder} has {size:.0f} MiB, more than {LIMIT_MIB}: other versions need other REMOVED")
    check = ["-m", "nightingale_lab.bench", "upstream_side", "--upstream", str(folder), "--check"]
    subprocess.run([sys.executable, *check], check=True)
    report(f"{folder}: {size:.0f} MiB; use it with --upstream {folder}")
