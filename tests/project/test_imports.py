"""Which room may import which, and what no room may do. The map is docs/architecture.md in code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "nightingale"
LINE_LIMIT = 400

GROUND = {"errors", "clocks", "values", "files"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "clocks": {"errors"},
    "values": {"errors", "clocks"},
    "files": {"errors"},
    "nn": GROUND,
    "models": GROUND | {"nn"},
    "text": GROUND,
    "audio": GROUND,
    "containers": GROUND,
    "voices": GROUND,
    "hub": GROUND,
    "wren": GROUND,
    "accel": GROUND | {"nn", "models"},
    "engine": GROUND | {"nn", "models", "text", "audio", "voices", "hub", "accel", "wren"},
    "compat": GROUND | {"engine", "text", "voices"},
    "server": GROUND | {"engine", "containers", "voices"},
    "bench": GROUND | {"engine", "audio", "text", "containers", "nn"},
    "train": GROUND | {"nn", "models", "text", "audio", "voices", "wren"},
    "cli": GROUND | {"engine", "containers", "voices", "hub", "wren", "server", "bench", "train"},
}
NOT_IN_THE_PRODUCT = {"transformers", "diffusers", "librosa", "torchaudio", "gradio", "scipy"}

# What a library must not do to the process it is a guest in.
FORBIDDEN_CALLS = {
    "print": "speak through return values and errors; only cli/ talks to people",
    "basicConfig": "logging handlers belong to the application",
    "addHandler": "logging handlers belong to the application",
    "set_num_threads": "the thread count belongs to the application",
    "set_num_interop_threads": "the thread count belongs to the application",
    "set_default_dtype": "pass dtype=",
    "set_default_device": "pass device=",
}
# `manual_seed` is fine on a torch.Generator of one's own and wrong on a module.
GLOBAL_SEEDS = {
    "torch.manual_seed",
    "torch.random.manual_seed",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "random.seed",
    "np.random.seed",
    "numpy.random.seed",
}
# Training runs on machines that lack what cli/ is made of, so it has a program of its own. Being one, and not
# a guest in one, it may seed the process.
PROGRAMS = {SRC / "train" / "__main__.py"}
# Sets the number for threads of the engine's own, and leaves that of all others as it was
# (tests/engine/test_beside.py::test_a_threads_number_is_its_own).
OWN_THREADS = SRC / "engine" / "beside.py"


def source_files() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def room_of(path: Path, src: Path = SRC) -> str:
    return path.relative_to(src).with_suffix("").parts[0]


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def wrong_imports(room: str, tree: ast.Module) -> list[str]:
    """Each import in this room that the map does not allow, in words."""
    found = []
    for name in imports_of(tree):
        parts = name.split(".")
        if name.startswith("."):
            found.append(f"relative import {name!r}; write the full name")
        elif parts[0] in NOT_IN_THE_PRODUCT:
            found.append(f"{parts[0]} is not part of the product")
        elif parts[0] == "nightingale" and len(parts) > 1 and room in MAY_IMPORT:
            other = parts[1]
            if other != room and other not in MAY_IMPORT[room] and other != "__version__":
                found.append(f"{room} may not import {other}")
    return found


def wrong_calls(tree: ast.Module) -> list[str]:
    """Each call that reaches out of the library into the process."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            spelled = ast.unparse(node.func)
            last = spelled.rsplit(".", 1)[-1]
            if last in FORBIDDEN_CALLS and not (last == "print" and "." in spelled):
                found.append(f"line {node.lineno}: {spelled}(): {FORBIDDEN_CALLS[last]}")
            if spelled in GLOBAL_SEEDS:
                found.append(f"line {node.lineno}: {spelled}(): draw from the request's own generator")
    return found


def test_every_room_is_on_the_map() -> None:
    rooms = {room_of(path) for path in source_files()} - {"__init__", "__main__"}
    assert rooms <= MAY_IMPORT.keys(), f"not on the map: {sorted(rooms - MAY_IMPORT.keys())}"


def test_each_room_imports_only_rooms_below_it() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {wrong}"
        for path in source_files()
        for wrong in wrong_imports(room_of(path), tree_of(path))
    ]
    assert not found, "\n".join(found)


def test_only_the_loader_of_the_engine_opens_the_door_to_accel() -> None:
    for path in (SRC / "engine").rglob("*.py"):
        if path.name not in ("load.py", "swaps.py"):
            assert not any(n.startswith("nightingale.backends.cuda") for n in imports_of(tree_of(path))), path


def test_no_file_outgrows_a_sitting() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in source_files()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LINE_LIMIT
    }
    assert not found, f"over {LINE_LIMIT} lines, split by responsibility: {found}"


def test_no_room_below_cli_touches_the_process_it_lives_in() -> None:
    found = [
        f"{path.relative_to(ROOT)} {w}"
        for path in source_files()
        if room_of(path) != "cli" and path not in PROGRAMS
        for w in wrong_calls(tree_of(path))
        if not (path == OWN_THREADS and "set_num_threads" in w)
    ]
    assert not found, "\n".join(found)


def test_every_module_says_what_it_is() -> None:
    written = [path for path in source_files() if path.read_text().strip()]
    silent = [str(path.relative_to(ROOT)) for path in written if not ast.get_docstring(tree_of(path))]
    assert not silent, f"no module docstring: {silent}"


@pytest.mark.parametrize(
    ("room", "line", "complaint"),
    [
        ("engine", "from nightingale.audio.encoders import wav", "engine may not import containers"),
        ("models", "import nightingale.engine.tts", "models may not import engine"),
        ("text", "from nightingale import voices", "text may not import voices"),
        ("nn", "from .rope import Rope", "relative import"),
        ("audio", "import librosa.filters", "librosa is not part of the product"),
    ],
)
def test_a_wrong_import_is_seen(room: str, line: str, complaint: str) -> None:
    assert complaint in "\n".join(wrong_imports(room, ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "print('hello')",
        "torch.manual_seed(0)",
        "torch.set_num_threads(1)",
        "np.random.seed(1)",
        "logging.basicConfig()",
    ],
)
def test_a_call_that_touches_the_process_is_seen(line: str) -> None:
    assert wrong_calls(ast.parse(line))


def test_a_generator_of_ones_own_may_be_seeded() -> None:
    assert not wrong_calls(ast.parse("torch.Generator().manual_seed(1)"))
