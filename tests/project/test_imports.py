"""Import rules: which package may import which, no cycles, and where torch may appear.

`MAY_IMPORT` is the import graph that docs/architecture.md shows; a test compares the two.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest
from project.source_tree import (
    ROOT,
    Import,
    cycles,
    import_graph,
    imports_of,
    modules,
    needs_torch,
    parse,
    python_files,
    relative,
)

BASE = {"errors", "clocks", "types", "files", "install", "request_options"}
"""Modules that every package above them may import."""
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "install": set(),
    "clocks": {"errors"},
    "files": {"errors"},
    "audio": {"errors", "clocks", "files", "install"},
    "request_options": set(),
    "types": {"errors", "clocks", "files", "audio", "request_options"},
    "text": BASE,
    "hub": BASE,
    "wren": BASE,
    "voices": BASE | {"audio"},
    "models": BASE | {"audio", "wren"},
    "decoding": BASE | {"text", "voices", "models"},
    "backends": BASE | {"audio", "voices", "models", "wren", "decoding"},
    "engine": BASE | {"text", "audio", "voices", "hub", "models", "wren", "decoding", "backends"},
    "compat": BASE | {"text", "voices", "decoding", "engine"},
    "export": BASE | {"text", "audio", "voices", "models", "decoding", "backends", "engine"},
    "book": BASE | {"text", "audio", "voices", "engine"},
    "server": BASE | {"audio", "voices", "backends", "engine", "book"},
    "ray": BASE | {"text", "audio", "voices", "engine", "server", "book"},
    "cli": BASE | {"audio", "voices", "hub", "wren", "backends", "engine", "export", "server", "book", "ray"},
}
BACKENDS = {"torch", "cuda", "cpu", "onnx", "mlx"}
CONTRACT = {"base", "profiles", "selection"}
"""Modules of backends/ that other packages may import, besides the registry in its __init__.py."""
NAME_BACKENDS = {"export"}
"""Packages that may import any module of backends/: an exporter writes the graphs of one backend."""
# A backend may use the contract, what backends share, and the reference implementation, whose streams and
# weights the others reuse. None imports another accelerated backend: each can be removed.
BACKENDS_MAY_IMPORT: dict[str, set[str]] = {
    "profiles": set(),
    "base": {"profiles"},
    "selection": {"base", "profiles"},
    "shared": {"base", "profiles"},
    "noise": {"base", "profiles", "shared"},
    "mlx": {"base", "profiles", "shared"},
    "torch": {"base", "profiles", "shared"},
    **{name: {"base", "profiles", "shared", "torch"} for name in ("cuda", "cpu", "onnx")},
    "": BACKENDS | {"base", "noise"},
}
READ_THE_VERSION = {"cli", "server", "ray"}
"""Packages that may import `nightingale` itself, for `nightingale.__version__`."""
NOT_IN_THE_PRODUCT = {
    "transformers",
    "diffusers",
    "librosa",
    "torchaudio",
    "gradio",
    "scipy",
    "tokenizers",
    "regex",
}
TORCH_FOLDERS = (
    "nightingale.models.",
    *(f"nightingale.backends.{name}." for name in (*sorted(BACKENDS), "shared")),
    "nightingale.compat.",
    "nightingale.export.phone.",
    "nightingale_lab.",
)
TORCH_FREE = ("engine", "decoding", "text", "audio", "voices", "server", "book", "cli", "hub", "wren")
PACKAGES = {name.split(".")[1] for name in modules() if name.startswith("nightingale.")} - {"__main__"}


def may_have_torch(module: str) -> bool:
    return f"{module}.".startswith(TORCH_FOLDERS)


def problem_with(module: str, imported: str) -> str | None:
    """Say why `module` may not import `imported`, or return None if it may."""
    here, there = module.split("."), imported.split(".")
    if imported.startswith("."):
        return f"relative import {imported!r}; write the full name"
    if there[0] in NOT_IN_THE_PRODUCT and here[0] == "nightingale":
        return f"{there[0]} is not a dependency of the product"
    if there[0] == "torch" and not may_have_torch(module):
        return f"torch may not be imported in {module}"
    if here[0] != "nightingale" or len(here) == 1 or here[1] == "__main__":
        return None
    if there[0] == "nightingale_lab":
        return None if here[1] == "cli" else "only nightingale.cli may look up nightingale_lab"
    if there[0] != "nightingale":
        return None
    if len(there) == 1:
        return None if here[1] in READ_THE_VERSION else f"{here[1]} may not import the public module"
    if here[1] == there[1] == "backends":
        name, other = [*here, ""][2], [*there, ""][2]
        allowed = BACKENDS_MAY_IMPORT.get(name, set()) | {name}
        return None if other in allowed else f"backends/{name} may not import backends/{other}"
    named = there[1] == "backends" and [*there, ""][2] not in CONTRACT | {""}
    if named and here[1] not in NAME_BACKENDS:
        return f"{here[1]} may not name a backend ({imported}); ask the registry in nightingale.backends"
    if here[1] != there[1] and there[1] not in MAY_IMPORT.get(here[1], set()):
        return f"{here[1]} may not import {there[1]}"
    return None


def problems(module: str, imports: list[Import]) -> list[str]:
    return [
        f"line {i.line}: {problem}" for i in imports if (problem := problem_with(module, i.name)) is not None
    ]


def test_every_package_is_in_the_import_graph() -> None:
    assert MAY_IMPORT.keys() == PACKAGES


def test_the_import_graph_itself_has_no_cycle() -> None:
    assert not cycles(MAY_IMPORT)
    assert not cycles(BACKENDS_MAY_IMPORT)


def test_each_package_imports_only_packages_below_it() -> None:
    known = modules()
    found = [
        f"{relative(path)} {problem}"
        for name, path in known.items()
        for problem in problems(name, imports_of(parse(path), known))
    ]
    assert not found, "\n".join(found)


def test_no_module_is_part_of_an_import_cycle() -> None:
    graph = import_graph()
    told = [
        "cycle:\n"
        + "\n".join(
            f"  {relative(modules()[name])}:{graph[name][other].line} imports {other}"
            for name in cycle
            for other in sorted(graph[name].keys() & set(cycle))
        )
        for cycle in cycles(graph)
    ]
    assert not told, "\n".join(told)


def test_torch_free_packages_never_import_a_module_that_imports_torch() -> None:
    """Function-level imports count: a torch-free package reaches torch only through a Backend object."""
    heavy = needs_torch()
    assert "nightingale.models.chatterbox.t3.model" in heavy
    found = [
        f"{relative(modules()[name])}:{found.line} imports {other}"
        for name, imports in import_graph().items()
        if name.startswith("nightingale.") and not may_have_torch(name)
        for other, found in imports.items()
        if other in heavy and other.startswith("nightingale.") and may_have_torch(other)
    ]
    assert not found, "\n".join(found)


IMPORT_WITHOUT_TORCH = """
import importlib, sys, traceback
from collections import defaultdict

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, NoTorch())
sys.modules["torch"] = None
failed = defaultdict(list)
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        failed[f"{at.filename}:{at.lineno}: {error}"].append(name)
for place, names in failed.items():
    print(place, "stops", *names)
"""


def test_torch_free_packages_import_where_torch_is_missing() -> None:
    wanted = [
        name
        for name in modules()
        if name.startswith(tuple(f"nightingale.{package}" for package in TORCH_FREE))
        or name in ("nightingale", "nightingale.backends", "nightingale.backends.noise")
        or name in (f"nightingale.backends.{module}" for module in CONTRACT)
    ]
    assert len(wanted) > 100
    command = [sys.executable, "-c", IMPORT_WITHOUT_TORCH, *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout, f"not importable without torch:\n{done.stdout}"


def test_tests_of_the_engine_name_no_backend_and_no_torch() -> None:
    """They use backends/noise, so that they pass without torch and without any other backend."""
    folders = [ROOT / "tests" / name for name in ("engine", "decoding")]
    files = [path for path in python_files() if any(path.is_relative_to(folder) for folder in folders)]
    assert len(files) > 10
    heavy = ("torch.", *(f"nightingale.backends.{name}." for name in sorted(BACKENDS)))
    found = [
        f"{relative(path)}:{found.line}: {found.name}"
        for path in files
        for found in imports_of(parse(path), modules())
        if f"{found.name}.".startswith(heavy)
    ]
    assert not found, "\n".join(found)


def section(heading: str) -> str:
    """Return one section of docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"docs/architecture.md has no section {heading!r}"
    return found[1]


def test_the_architecture_page_shows_this_import_graph() -> None:
    """Each row of the drawing lists packages; imports go to rows further down."""
    (drawing,) = re.findall(r"```text\n(.*?)```", section("Import graph"), re.DOTALL)
    row_of = {name: at for at, line in enumerate(drawing.splitlines()) for name in re.findall(r"\w+", line)}
    assert row_of.keys() == MAY_IMPORT.keys()
    upwards = [
        (name, other)
        for name, allowed in MAY_IMPORT.items()
        for other in allowed
        if row_of[other] <= row_of[name]
    ]
    assert not upwards, f"drawn above or beside what imports it: {upwards}"


def test_the_architecture_page_lists_what_each_package_may_import() -> None:
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|$", section("Import graph"), re.MULTILINE)
    told = {name: set(re.findall(r"`(\w+)`", row)) for name, row in rows}
    below = {*BASE, "audio"}
    assert told == {name: MAY_IMPORT[name] - (set() if name in below else BASE) for name in MAY_IMPORT}


@pytest.mark.parametrize(
    ("module", "line", "complaint"),
    [
        ("nightingale.engine.worker", "import torch.nn", "torch may not be imported"),
        ("nightingale.engine.worker", "from nightingale.server import app", "engine may not import server"),
        ("nightingale.models.compact", "import nightingale.engine.tts", "models may not import engine"),
        ("nightingale.text.frontend", "from nightingale import voices", "text may not import voices"),
        ("nightingale.types", "from nightingale import __version__", "may not import the public module"),
        ("nightingale.models.layers.rope", "from .rope import Rope", "relative import"),
        ("nightingale.audio.read", "import librosa.filters", "librosa is not a dependency"),
        ("nightingale.engine.tts", "import nightingale_lab.bench", "only nightingale.cli"),
        ("nightingale.engine.load", "import nightingale.backends.torch.runner", "may not name a backend"),
        ("nightingale.backends.cpu.runner", "import nightingale.backends.onnx.runner", "may not import"),
        ("nightingale.backends.torch.runner", "import nightingale.backends.cuda.graphs", "may not import"),
        ("nightingale.hub.find", "def f():\n    import nightingale.engine.tts", "line 2"),
        ("nightingale.hub.find", "import_module('nightingale.engine.tts')", "hub may not import engine"),
    ],
)
def test_a_forbidden_import_is_found(module: str, line: str, complaint: str) -> None:
    assert complaint in "\n".join(problems(module, imports_of(ast.parse(line), modules())))


def test_an_import_for_types_only_is_ignored() -> None:
    source = "if TYPE_CHECKING:\n    import nightingale.engine.tts\nelse:\n    import os\n"
    assert [i.name for i in imports_of(ast.parse(source))] == ["os"]


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
