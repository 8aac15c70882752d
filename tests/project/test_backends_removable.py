"""Remove each backend from a copy of the repository: the tests of the engine pass without it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from project.source_tree import ROOT
from project.test_imports import BACKENDS

pytestmark = pytest.mark.package
TESTS = ("tests/engine", "tests/decoding")
# They take long and use no backend but the one for test signals.
LEFT_OUT = tuple(
    f"tests/{name}.py"
    for name in (
        "decoding/test_philox",
        "engine/test_batch_pacing",
        "engine/test_cancellation",
        "engine/test_deadlines",
        "engine/test_faults",
        "engine/test_long_text",
        "engine/test_processes",
        "engine/test_python_use",
        "engine/test_segment_streaming",
        "engine/test_stream_capacity",
        "engine/test_time_stretch",
        "engine/test_wrong_types",
    )
)
LIMIT_S = 300


def without_backend(source: str, name: str) -> str:
    """Return backends/__init__.py without the import and the registry line of one backend."""
    lines = source.splitlines(keepends=True)
    removed: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        imported = isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(
            f"nightingale.backends.{name}."
        )
        entries = node.elts if isinstance(node, ast.Tuple) else []
        named = [e for e in entries if re.search(rf"(?i)\b{name}(backend)?\b", ast.unparse(e))]
        for found in [*([node] if imported else []), *named]:
            removed.update(range(found.lineno, (found.end_lineno or found.lineno) + 1))
    assert removed, f"backends/__init__.py has no line for {name}"
    return "".join(line for number, line in enumerate(lines, start=1) if number not in removed)


def copy_repository(target: Path) -> None:
    """Copy what the tests need. Weights are linked, since nothing changes them."""
    shutil.copytree(
        ROOT / "src",
        target / "src",
        ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"),
        symlinks=True,
    )
    for weights in (ROOT / "src").rglob("*.safetensors"):
        (target / weights.relative_to(ROOT)).symlink_to(weights)
    shutil.copytree(ROOT / "tests", target / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_the_engine_works_without_this_backend(name: str, tmp_path: Path) -> None:
    copy_repository(tmp_path)
    package = tmp_path / "src" / "nightingale" / "backends"
    registry = package / "__init__.py"
    registry.write_text(without_backend(registry.read_text(), name))
    shutil.rmtree(package / name)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    left_out = [f"--ignore={path}" for path in LEFT_OUT]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *left_out, *TESTS],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) > 400


def test_a_registry_line_is_removed_with_its_import() -> None:
    source = (
        "from nightingale.backends.cpu import CpuBackend\n"
        "from nightingale.backends.torch import TorchBackend\n"
        "BACKENDS = (\n    CpuBackend(),\n    TorchBackend(),\n)\n"
    )
    assert without_backend(source, "cpu") == (
        "from nightingale.backends.torch import TorchBackend\nBACKENDS = (\n    TorchBackend(),\n)\n"
    )
