"""Print how large the repository is: lines of Python by area, copies of HiFT's trunk, and pages of documentation.

Lines are all lines of `.py` files that git has or would add, blank ones included: `python tools/size_table.py`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = "src/nightingale/"
BACKENDS = f"{PRODUCT}backends/"
KERNELS = f"{BACKENDS}cpu/kernels/"
OUTSIDE = (BACKENDS, f"{PRODUCT}export/")
"""Folders that write networks, sampling and random numbers again, outside their definition, apart from `KERNELS`."""
LAB = ("src/nightingale_lab/", "tools/")
OTHER_NETWORKS = "src/nightingale_lab/train/teachers/"
"""Networks of other projects, which have trunks of their own."""
TRUNK = (
    r"\b(?:hift|self)\.ups\b|\bhift\.stages\b|\bself\._upsample\(",  # the upsampling stages: built, or walked through
    r"(?i)leaky_?relu|\bslope\b",  # the activation before each of them
)
"""A file that matches all of these patterns defines HiFT's trunk. One that only measures the stages, or runs a layer
of them, has no activation between stages, or no stages."""


def tracked(root: Path) -> list[str]:
    """Return the paths of the files that git has or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted({path for path in listed if (root / path).is_file()})


def read(root: Path, path: str) -> str:
    return (root / path).read_text(encoding="utf-8")


def count_lines(root: Path, paths: Iterable[str], folders: str | tuple[str, ...], without: str = "-") -> int:
    """Return the lines of the Python files below folders, without those below another."""
    wanted = [
        path
        for path in paths
        if path.startswith(folders) and path.endswith(".py") and not path.startswith(without)
    ]
    return sum(len(read(root, path).splitlines()) for path in wanted)


def trunk_files(root: Path, paths: Iterable[str]) -> list[str]:
    """Return the files of the product and the lab that define HiFT's trunk."""
    sources = [
        path
        for path in paths
        if path.startswith("src/") and path.endswith(".py") and not path.startswith(OTHER_NETWORKS)
    ]
    return [path for path in sources if all(re.search(pattern, read(root, path)) for pattern in TRUNK)]


def table(root: Path = ROOT) -> list[tuple[str, int]]:
    """Return the rows: what is counted, and the count."""
    paths = tracked(root)
    trunks = trunk_files(root, paths)
    return [
        ("Python lines, src/nightingale", count_lines(root, paths, PRODUCT)),
        ("of which backends without cpu/kernels, and export", count_lines(root, paths, OUTSIDE, KERNELS)),
        *((f"  {name}", count_lines(root, paths, name, KERNELS)) for name in parts(paths)),
        ("Python lines, lab + tools", count_lines(root, paths, LAB)),
        ("Python lines, tests", count_lines(root, paths, "tests/")),
        ("pages of documentation", sum(path.startswith("docs/") and path.endswith(".md") for path in paths)),
        ("files that define HiFT's trunk", len(trunks)),
        *((f"  {path}", len(read(root, path).splitlines())) for path in trunks),
    ]


def parts(paths: Iterable[str]) -> list[str]:
    """Return the folders directly below `OUTSIDE` that have files."""
    found = {re.match(rf"(?:{'|'.join(OUTSIDE)})\w+/", path) for path in paths}
    return sorted({match[0] for match in found if match})


if __name__ == "__main__":
    for what, count in table():
        print(f"{what:<62}{count:>8,}")
