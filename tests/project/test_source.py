"""Rules for every Python file: its module docstring, and no effects on the process it runs in."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from project.source_tree import SRC, parse, python_files, relative

FORBIDDEN_CALLS = {
    "print": "return values and raise errors; only cli/ prints",
    "basicConfig": "logging handlers belong to the application",
    "addHandler": "logging handlers belong to the application",
    "set_num_threads": "the thread count belongs to the application",
    "set_num_interop_threads": "the thread count belongs to the application",
    "set_default_dtype": "pass dtype=",
    "set_default_device": "pass device=",
}
# `manual_seed` is fine on a torch.Generator and wrong on a module.
GLOBAL_SEEDS = {
    "torch.manual_seed",
    "torch.random.manual_seed",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "random.seed",
    "np.random.seed",
    "numpy.random.seed",
}
# Programs of their own may seed the process: training (machines that train lack what cli/ needs), and the
# comparison with upstream, whose networks use the global generator; benchmarks choose their threads.
PROGRAMS = [
    SRC / "nightingale_lab" / name for name in ("train/__main__.py", "parity", "upstream", "bench/programs")
]
# It sets the thread count of its own threads only, as
# tests/backends/torch/test_pipelined.py::test_a_threads_number_is_its_own shows.
OWN_THREADS = SRC / "nightingale" / "backends" / "torch" / "devices.py"


def library_files() -> list[Path]:
    """Return the files of src/ that run inside the process of another program."""
    return [
        path
        for path in python_files()
        if path.is_relative_to(SRC)
        and "cli" not in path.relative_to(SRC).parts
        and not any(path.is_relative_to(program) for program in PROGRAMS)
    ]


def forbidden_calls(tree: ast.AST) -> list[tuple[str, str]]:
    """Return (function, complaint) for each call that changes the state of the whole process."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            spelled = ast.unparse(node.func)
            last = spelled.rsplit(".", 1)[-1]
            if last in FORBIDDEN_CALLS and not (last == "print" and "." in spelled):
                found.append((last, f"line {node.lineno}: {spelled}(): {FORBIDDEN_CALLS[last]}"))
            if spelled in GLOBAL_SEEDS:
                found.append((last, f"line {node.lineno}: {spelled}(): use the request's own generator"))
    return found


def test_every_module_has_a_docstring() -> None:
    written = [path for path in python_files() if path.read_text().strip()]
    missing = [relative(path) for path in written if not ast.get_docstring(parse(path))]
    assert not missing, f"no module docstring: {missing}"


def test_nothing_below_cli_changes_the_process() -> None:
    found = [
        f"{relative(path)} {complaint}"
        for path in library_files()
        for name, complaint in forbidden_calls(parse(path))
        if not (path == OWN_THREADS and name == "set_num_threads")
    ]
    assert not found, "\n".join(found)


def test_the_exceptions_to_the_rules_exist() -> None:
    assert all(path.exists() for path in (*PROGRAMS, OWN_THREADS))


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
def test_a_call_that_changes_the_process_is_found(line: str) -> None:
    assert forbidden_calls(ast.parse(line))


def test_a_generator_may_be_seeded() -> None:
    assert not forbidden_calls(ast.parse("torch.Generator().manual_seed(1)"))
