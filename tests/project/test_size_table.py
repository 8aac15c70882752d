"""The table of sizes counts what git has, and finds the files that define HiFT's trunk."""

from __future__ import annotations

import subprocess
from pathlib import Path

from project.source_tree import load_tool

TRUNK = "for up in hift.ups:\n    x = up(leaky_relu(x))\n"
FILES = {
    "src/nightingale/engine/tts.py": "a = 1\n\nb = 2\n",
    "src/nightingale/models/hift.py": TRUNK,
    "src/nightingale/backends/mlx/blocks.py": "x = self._upsample(x)\ny = where(x > 0, x, SLOPE * x)\n",
    "src/nightingale/backends/mlx/length.py": "for up in hift.ups:\n    length *= up.rate\n",
    "src/nightingale/backends/cpu/kernels/gemm.py": "leaky_relu = 0\n" * 7,
    "src/nightingale/export/phone.txt": TRUNK,
    "src/nightingale_lab/train/net.py": TRUNK,
    "src/nightingale_lab/train/teachers/net.py": TRUNK,
    "tools/cpu.py": "a = 1\n",
    "tests/test_a.py": TRUNK,
    "docs/a.md": "# A\n",
    "docs/internals/b.md": "# B\n",
    "build/ignored.py": TRUNK,
    ".gitignore": "build/\n",
}


def test_the_table_counts_lines_pages_and_trunks(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert load_tool("size_table").table(tmp_path) == [
        ("Python lines, src/nightingale", 16),
        ("of which backends without cpu/kernels, and export", 4),
        ("  src/nightingale/backends/cpu/", 0),
        ("  src/nightingale/backends/mlx/", 4),
        ("Python lines, lab + tools", 5),
        ("Python lines, tests", 2),
        ("pages of documentation", 2),
        ("files that define HiFT's trunk", 3),
        ("  src/nightingale/backends/mlx/blocks.py", 2),
        ("  src/nightingale/models/hift.py", 2),
        ("  src/nightingale_lab/train/net.py", 2),
    ]
