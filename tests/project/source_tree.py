"""Parse the repository's Python files. Every test in this folder that reads source code starts here.

`modules()` maps dotted names to files; `imports_of()` lists the imports of a file, function-level ones
included; `cycles()` finds the strongly connected components of a graph.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
FOLDERS = ("src", "tests", "tools", "parity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import in a file. `lazy` means that it runs inside a function, not when the file is imported."""

    name: str
    line: int
    lazy: bool


@cache
def python_files() -> tuple[Path, ...]:
    """Return every Python file of the repository, in a stable order."""
    found = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert len(found) > 100, f"{ROOT} does not look like the repository"
    return tuple(found)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def modules() -> dict[str, Path]:
    """Return dotted module name -> file, for the packages under src/."""
    return {module_name(path): path for path in python_files() if path.is_relative_to(SRC)}


def module_name(path: Path, src: Path = SRC) -> str:
    parts = path.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports_of(tree: ast.AST, known: Iterable[str] = ()) -> list[Import]:
    """List the imports of a file, also those inside functions, but not those under `if TYPE_CHECKING`.

    `from a.b import c` counts as an import of `a.b.c` if that is a `known` module, otherwise of `a.b`.
    `import_module("a.b")` counts as well.
    """
    return list(_walk_imports(tree, frozenset(known), lazy=False))


def _walk_imports(node: ast.AST, known: frozenset[str], *, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from _walk_imports(ast.Module(body=child.orelse, type_ignores=[]), known, lazy=lazy)
            continue
        for name in imported_names(child, known):
            yield Import(name=name, line=child.lineno, lazy=lazy)  # type: ignore[attr-defined]
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _walk_imports(child, known, lazy=lazy or is_function)


def imported_names(node: ast.AST, known: frozenset[str]) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            start = "." * level + (module or "")
            full = [f"{start}.{alias.name}" for alias in names]
            return sorted({name if name in known else start for name in full})
        case ast.Call(
            func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return [name]
    return []


@cache
def import_graph() -> dict[str, dict[str, Import]]:
    """Return module -> {imported module of ours: the import}, function-level imports included."""
    known = modules()
    return {
        name: {found.name: found for found in imports_of(parse(path), known) if found.name in known}
        for name, path in known.items()
    }


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one node (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], index[other])
        if lowest[node] == index[node]:
            at = stack.index(node)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1 or node in graph.get(node, ()):
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return sorted(found)


def needs_torch() -> set[str]:
    """Return the modules that import torch when they are imported, by themselves or through others."""
    known = modules()
    eager = {
        name: {i.name for i in imports_of(parse(path), known) if not i.lazy} for name, path in known.items()
    }
    heavy = {name for name, names in eager.items() if any(n.split(".")[0] == "torch" for n in names)}
    while grown := {name for name, names in eager.items() if names & heavy} - heavy:
        heavy |= grown
    return heavy


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each docstring, those of attributes included."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each name that a file defines: classes, functions, arguments, variables."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def words_of(identifier: str) -> list[str]:
    """Split an identifier into lower-case words: `KVCache` and `kv_cache` both give kv, cache."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)]


def load_tool(name: str) -> ModuleType:
    """Import a script of tools/ as a module; it may import its neighbours."""
    if str(ROOT / "tools") not in sys.path:
        sys.path.append(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
