"""Documents match the code: paths and links resolve, snippets compile, generated pages are up to date."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from project.source_tree import ROOT, identifiers, load_tool, parse

from nightingale.cli import doctor
from nightingale.install import PUBLISHED

PAGES = [
    ROOT / "README.md",
    ROOT / "AGENTS.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CODE_OF_CONDUCT.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FOLDERS = ("src/", "tests/", "tools/", "docs/", "dev/", "parity/", "benchmarks/", ".ci/", ".github/")
FILES = (
    "Makefile",
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DEVELOPERS = {"executorch", "coreml", "dev", "browser"}
"""Extras for work on this repository."""


def named_paths(text: str) -> set[str]:
    """Return the repository paths in backticks. A path with a placeholder (<name>, *) does not count."""
    spelled = re.findall(r"`([^`\n]+)`", text)
    return {p for p in spelled if (p.startswith(FOLDERS) or p in FILES) and not re.search(r"[<>*{} …]", p)}


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def links(text: str) -> list[tuple[str, str]]:
    """Return (path, anchor) of each link and image that points into the repository."""
    found = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", without_code(text))
    inside = [target for target in found if not re.match(r"[a-z]+:", target)]
    return [(path, anchor) for path, _, anchor in (target.partition("#") for target in inside)]


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set()
    for heading in re.findall(r"^#+\s+(.+?)\s*#*$", plain, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        again = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", known) is not None for known in found)
        found.add(f"{slug}-{again}" if again else slug)
    return found


def snippets(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def broken_links(page: Path) -> list[str]:
    broken = []
    for path, anchor in links(page.read_text()):
        target = page.parent / path if path else page
        if not target.exists():
            broken.append(path)
        elif anchor and anchor not in anchors(target.read_text()):
            broken.append(f"{path}#{anchor}")
    return broken


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda p: p.name)
def test_every_link_and_anchor_resolves(page: Path) -> None:
    assert not (broken := broken_links(page)), f"{page.name} links to {broken}"


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One heading\n[a](page.md#one-heading) [b](#two) [c](gone.md) [d](https://example.org)")
    assert broken_links(page) == ["#two", "gone.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_path_a_page_names_exists(page: Path) -> None:
    base = (ROOT, page.parent)
    missing = {
        p for p in named_paths(page.read_text()) if not any((b / p.split("::")[0]).exists() for b in base)
    }
    assert not missing, f"{page.name} names missing paths: {sorted(missing)}"


def defined_names(path: Path) -> set[str]:
    """Return the classes, functions, methods and top-level names of a Python file, as `Class.method`."""
    found = set()
    for node in parse(path).body:
        below = node.body if isinstance(node, ast.ClassDef) else []
        for outer, inner in [(node, None), *((node, child) for child in below)]:
            names = [name for part in (outer, inner) if part for _, name in list(identifiers(part))[:1]]
            found.add(".".join(names))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_function_a_page_names_exists(page: Path) -> None:
    """Pages name functions as `src/nightingale/engine/tts.py::TTS.open`."""
    named = re.findall(r"`([\w/.]+\.py)::([\w.]+)`", page.read_text())
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or name not in defined_names(ROOT / path)
    ]
    assert not missing, f"{page.name} names missing functions: {missing}"


def test_every_python_snippet_compiles() -> None:
    found = [(page.name, snippet) for page in PAGES for snippet in snippets(page.read_text())]
    assert {"README.md", "python.md", "compat.md"} <= {name for name, _ in found}
    for name, snippet in found:
        compile(snippet, name, "exec")


def test_generated_pages_are_up_to_date() -> None:
    pages = load_tool("make_docs").pages()
    assert len(pages) >= 3
    for path, text in pages.items():
        assert (ROOT / path).read_text() == text, f"{path} is stale; run `make docs`"


def test_no_mark_of_a_number_begins_a_line() -> None:
    """A comment at the start of a line would end the paragraph before it."""
    numbers = load_tool("docs_numbers")
    found = [
        f"{page.name}: {line[:60]}"
        for page in PAGES
        for line in page.read_text().splitlines()
        if numbers.MARK.match(line)
    ]
    assert not found


def test_every_number_is_on_a_page() -> None:
    numbers = load_tool("docs_numbers")
    used = {name for page in PAGES for name, _ in numbers.MARK.findall(page.read_text())}
    assert used == numbers.NUMBERS.keys()


def test_a_number_that_differs_is_filled_in_again() -> None:
    numbers = load_tool("docs_numbers")
    right = numbers.marked("wren.rtf")
    wrong = re.sub(r">[^<]+<", ">9.999<", right)
    assert wrong != right
    assert numbers.filled(f"It is {wrong} here.") == f"It is {right} here."
    with pytest.raises(LookupError, match=r"wren\.nonsense"):
        numbers.filled("<!--wren.nonsense-->1<!---->")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/choosing.md"])
def test_measured_values_of_front_pages_are_marked(page: str) -> None:
    text = load_tool("docs_numbers").MARK.sub("", without_code((ROOT / page).read_text()))
    assert not re.findall(r"\b\d[\d.,]*\s?(?:ms|%|semitones|real-time)", text)


def test_the_readme_is_short_and_its_comparison_too() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    compared = text.split("## How it compares")[1].split("\n\n")[1].splitlines()
    assert 4 <= len(compared) - 2 <= 8
    for name in ("Chatterbox upstream", "Kokoro", "Piper", "pocket-tts", "hibari"):
        assert sum(name in row for row in compared) == 1
    assert "<this repository>" not in text


def test_every_target_of_the_makefile_is_in_its_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, flags=re.MULTILINE)
    assert phony
    explained = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))
    assert set(phony[1].split()) == explained


def test_constraints_hold_an_exact_version_of_every_core_dependency() -> None:
    pinned = {
        line.split("==")[0].lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    needed = re.search(
        r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE
    )
    assert needed
    names = {name.lower() for name in re.findall(r'"([A-Za-z0-9_-]+)', needed[1])}
    assert names
    assert names <= pinned, f"not pinned: {names - pinned}"


def test_the_core_depends_on_what_wren_needs_and_no_more() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=!~;\[ ]", requirement)[0]: requirement for requirement in project["dependencies"]}
    assert names.pop("mlx").endswith("; sys_platform == 'darwin' and platform_machine == 'arm64'")
    assert names.keys() == {
        "numpy", "onnxruntime", "safetensors", "soundfile", "soxr", "typer", "platformdirs",
    }  # fmt: skip


def test_the_readme_lists_every_extra() -> None:
    told = re.search(
        r"^Optional extras: (.*?)\. ", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert told
    assert set(re.findall(r"`(\w+)`", told[1])) == set(EXTRAS) - DEVELOPERS


def test_all_is_every_extra_for_users() -> None:
    (everything,) = EXTRAS["all"]
    named = re.fullmatch(r"nightingale-tts\[([\w,]+)\]", everything)
    assert named
    assert set(named[1].split(",")) == set(EXTRAS) - DEVELOPERS - {"all", "lab"}


def test_the_package_is_installed_in_the_way_that_works() -> None:
    """Pages and code install it from a clone until it is published, and then by its name (dev/releasing.md)."""
    own = ROOT / "src" / "nightingale" / "install.py"
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tools").glob("*.md")]
    code = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.md")]
    by_name = re.compile(r"pip install nightingale-tts|nightingale-tts\[")
    from_clone = re.compile(r"pip install ['\"]?\.(?:\[| |`|$)", re.MULTILINE)
    wrong = {path for path in code if path != own and by_name.search(path.read_text("utf-8"))}
    pattern = from_clone if PUBLISHED else by_name
    wrong |= {path for path in pages if pattern.search(path.read_text("utf-8"))}
    assert not wrong
    assert ("not on PyPI yet" in (ROOT / "README.md").read_text("utf-8")) is not PUBLISHED


def test_every_extra_that_doctor_looks_for_exists_and_something_uses_it() -> None:
    source = {path: path.read_text() for path in (ROOT / "src").rglob("*.py") if path.name != "doctor.py"}
    assert doctor.EXTRAS
    for extra, module in doctor.EXTRAS.items():
        assert extra in EXTRAS, f"doctor prescribes the extra {extra}, which does not exist"
        used = rf"import {module}\b|from {module}\b|[\"']{module}[\"']"
        assert any(re.search(used, text) for text in source.values()), f"no file imports {module}"


def test_the_torch_of_the_constraints_is_plain_2_13() -> None:
    assert "torch==2.13.0\n" in (ROOT / "constraints.txt").read_text()


def test_every_parity_comment_names_a_test_that_exists() -> None:
    """Code that copies an oddity of upstream names the test that needs it."""
    broken = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text()
        for match in re.finditer(r"# PARITY:", text):
            comment = re.match(r"(?:[^\n]*\n)(?:\s*#[^\n]*\n)*", text[match.start() :])
            named = re.search(r"(tests/[\w/]+\.py)::(\w+)", comment[0] if comment else "")
            test_file = ROOT / named[1] if named else None
            if not (
                named and test_file and test_file.exists() and f"def {named[2]}(" in test_file.read_text()
            ):
                broken.append(f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}")
    assert not broken, f"PARITY comments without an existing test: {broken}"
