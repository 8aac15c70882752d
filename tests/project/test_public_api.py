"""The public API: its signatures, and an import that is quick and free of heavy or optional packages."""

from __future__ import annotations

import difflib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from project.source_tree import load_tool

import nightingale
from nightingale import errors

HELP_LIMIT_S = 0.5
HEAVY = {"torch", "numpy", "safetensors", "tokenizers", "huggingface_hub", "soundfile", "soxr"}
OPTIONAL = {"pykakasi", "spacy_pkuseg", "dicta_onnx", "russian_text_stresser"} | {
    "fastapi", "uvicorn", "pydantic", "pydantic_settings", "prometheus_client", "av", "wyoming", "websockets",
}  # fmt: skip


def loaded_after(code: str) -> set[str]:
    """Return the top-level packages in a fresh interpreter after running `code`."""
    report = "import sys; print(' '.join({m.split('.')[0] for m in sys.modules}), file=sys.stderr)"
    script = f"try:\n    {code}\nfinally:\n    {report}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_nightingale_imports_nothing_heavy_and_nothing_optional() -> None:
    assert not loaded_after("import nightingale") & (HEAVY | OPTIONAL)


def test_help_does_not_import_torch() -> None:
    code = "import sys; sys.argv = ['nightingale', '--help']; from nightingale.cli.main import main; main()"
    loaded = loaded_after(code)
    assert "typer" in loaded
    assert not loaded & (HEAVY | OPTIONAL)


def test_the_engine_imports_no_event_loop_and_no_client_of_the_hub() -> None:
    """A program that only calls `TTS.say` waits for every import."""
    loaded = loaded_after("import nightingale.engine")
    assert not loaded & (
        OPTIONAL | {"asyncio", "ssl", "huggingface_hub", "tokenizers", "typer", "rich", "soxr", "soundfile"}
    )


def test_help_takes_less_than_half_a_second_of_processor_time() -> None:
    took_s = min(help_cpu_s() for _ in range(3))
    assert took_s < HELP_LIMIT_S, f"best of three: {took_s:.2f} s; 0.13 s on an idle machine"


def help_cpu_s() -> float:
    """Return the processor time of `nightingale --help`, which does not include waiting for a free core."""
    before = os.times()
    command = [sys.executable, "-m", "nightingale", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = os.times()
    assert "Usage:" in done.stdout
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_the_public_api_has_not_changed() -> None:
    """After a change on purpose: `python tools/api_signatures.py > tests/project/api.txt`."""
    kept = (Path(__file__).parent / "api.txt").read_text().splitlines()
    found = load_tool("api_signatures").lines()
    changes = difflib.unified_diff(kept, found, "tests/project/api.txt", "this tree", lineterm="", n=0)
    assert kept == found, "\n".join(changes)


def test_public_names_are_sorted() -> None:
    # As ruff sorts it: constants, then classes, then the rest.
    classes = [name for name in nightingale.__all__ if name[0].isupper() and not name.isupper()]
    assert classes == sorted(classes)
    assert len(set(nightingale.__all__)) == len(nightingale.__all__)


def test_every_error_is_public() -> None:
    tree = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert tree <= set(nightingale.__all__)


@pytest.mark.parametrize("name", nightingale.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(nightingale, name) is not None


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        nightingale.Nope  # noqa: B018


def test_the_tree_in_errors_py_shows_every_error() -> None:
    public = {name: getattr(nightingale, name) for name in nightingale.__all__}
    kinds = {
        name for name, value in public.items() if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert len(kinds) > 10
    assert not (missing := kinds - set((errors.__doc__ or "").split())), f"not in the tree: {missing}"
