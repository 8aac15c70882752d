"""Wren's first greedy tokens are those that tools/wren_golden.py recorded."""

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
"""The share of positions that must agree on another processor or torch; elsewhere all must."""
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
    opened = tool.open_subject(wren.folder())
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
def test_greedy_tokens_are_the_recorded_ones(
    tool: ModuleType, subject: Any, golden: dict[str, Any], name: str
) -> None:
    tokens, text = golden["tokens"][name], tool.SENTENCES[name]
    if golden["made"] == tool.here():
        assert tool.greedy_tokens(subject, text) == tokens
    else:
        assert agreement(tool.predicted_tokens(subject, text, tokens), tokens) >= ELSEWHERE


def test_recorded_tokens_predict_the_next_for_their_own_text_only(
    tool: ModuleType, subject: Any, golden: dict[str, Any]
) -> None:
    tokens = golden["tokens"]["short"]
    assert agreement(tool.predicted_tokens(subject, tool.SENTENCES["short"], tokens), tokens) >= ELSEWHERE
    assert agreement(tool.predicted_tokens(subject, tool.SENTENCES["long"], tokens), tokens) < ELSEWHERE
