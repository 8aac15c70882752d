"""Wren says what it said: its first tokens at temperature 0, as tools/wren_golden.py wrote them down."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nightingale import wren

TOOL = Path(__file__).parents[3] / "tools" / "wren_golden.py"
ELSEWHERE = 0.9
"""On another processor or torch, this share of positions; where they were written down, all."""
NOT_SHIPPED = wren.missing(wren.folder())

pytestmark = pytest.mark.skipif(
    bool(NOT_SHIPPED), reason=f"wren's weights are not in this package: no {', '.join(NOT_SHIPPED)}"
)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wren_golden", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def golden(tool: ModuleType) -> dict[str, Any]:
    assert tool.GOLDEN.is_file(), "wren has weights and no golden tokens: run `python tools/wren_golden.py`"
    found: dict[str, Any] = json.loads(tool.GOLDEN.read_text())
    return found


@pytest.fixture(scope="module")
def subject(tool: ModuleType) -> Any:
    opened = tool.opened(wren.folder())
    yield opened
    opened.close()


def agreement(chosen: list[int], golden: list[int]) -> float:
    return sum(a == b for a, b in zip(chosen, golden, strict=True)) / len(golden)


def test_the_golden_tokens_are_of_these_weights(tool: ModuleType, golden: dict[str, Any]) -> None:
    assert golden["weights"] == tool.weights(wren.folder()), (
        "wren was trained anew: listen to it, then run `python tools/wren_golden.py`"
    )
    assert all(len(tokens) == tool.COUNT for tokens in golden["tokens"].values())


@pytest.mark.parametrize("name", ["short", "long"])
def test_wren_draws_its_golden_tokens(
    tool: ModuleType, subject: Any, golden: dict[str, Any], name: str
) -> None:
    tokens, text = golden["tokens"][name], tool.SENTENCES[name]
    if golden["made"] == tool.here():
        assert tool.spoken(subject, text) == tokens
    else:
        assert agreement(tool.told(subject, text, tokens), tokens) >= ELSEWHERE


def test_told_its_golden_tokens_wren_chooses_the_next_and_with_another_text_it_does_not(
    tool: ModuleType, subject: Any, golden: dict[str, Any]
) -> None:
    tokens = golden["tokens"]["short"]
    assert agreement(tool.told(subject, tool.SENTENCES["short"], tokens), tokens) >= ELSEWHERE
    assert agreement(tool.told(subject, tool.SENTENCES["long"], tokens), tokens) < ELSEWHERE
