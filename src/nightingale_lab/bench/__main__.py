"""Run a benchmark: `python -m nightingale_lab.bench NAME [options]`. Without a name, list them.

Benchmarks that are modules of their own are run by their module: `python -m nightingale_lab.bench.wren`.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

PROGRAMS = "nightingale_lab.bench.programs"
MODULES = {
    "cluster": f"{PROGRAMS}.cluster",
    "cpu": f"{PROGRAMS}.cpu",
    "engine": f"{PROGRAMS}.engine",
    "executorch_programs": f"{PROGRAMS}.executorch_programs",
    "fleet": f"{PROGRAMS}.fleet_costs",
    "gpu": f"{PROGRAMS}.gpu.gpu",
    "gpu_engine": f"{PROGRAMS}.gpu.gpu_engine",
    "onnx_blocks": f"{PROGRAMS}.onnx_blocks",
    "peer_quality": f"{PROGRAMS}.peer_quality",
    "processes": f"{PROGRAMS}.processes",
    "server": f"{PROGRAMS}.server",
    "streaming": f"{PROGRAMS}.streaming",
    "upstream_env": "nightingale_lab.upstream.upstream_env",
    "upstream_side": "nightingale_lab.upstream.upstream_side",
}
"""The module of each benchmark, whose `main` runs it."""


def source(name: str) -> Path:
    """Return the file of a benchmark, without importing it."""
    found = find_spec(MODULES[name])
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


def summary(name: str) -> str:
    """Return the first line of a benchmark's docstring."""
    doc = ast.get_docstring(ast.parse(source(name).read_text(encoding="utf-8"))) or ""
    return doc.splitlines()[0]


def main(arguments: Sequence[str]) -> int:
    name = arguments[0] if arguments else ""
    if name not in MODULES:
        known = "".join(f"  {known:<20} {summary(known)}\n" for known in MODULES)
        sys.stderr.write(f"usage: python -m nightingale_lab.bench NAME [options]\n\n{known}")
        return 0 if name in ("-h", "--help") else 2
    importlib.import_module(MODULES[name]).main(arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
