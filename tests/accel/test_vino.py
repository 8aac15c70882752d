"""When OpenVINO may run T3, and that it says why not. Its steps are in test_cpu_runner.py."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from nightingale.accel.cpu import vino_able
from nightingale.accel.cpu.packed import Packed
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.t3.config import MULTILINGUAL
from nightingale.models.chatterbox.t3.model import T3


@pytest.fixture(autouse=True)
def able(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which nothing stands against it."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(vino_able, "find_spec", lambda name: name)
    monkeypatch.setattr(vino_able, "trial_error", lambda: 0.01)
    vino_able._tried.cache_clear()
    yield
    vino_able._tried.cache_clear()


def test_it_is_for_large_models_on_processors_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert vino_able.refusal(MULTILINGUAL) is None
    assert "so small a model" in (vino_able.refusal(PRESETS["wren"].t3) or "")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert "this CPU has AVX2" in (vino_able.refusal(MULTILINGUAL) or "")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vino_able, "find_spec", lambda _name: None)
    assert "pip install" in (vino_able.refusal(MULTILINGUAL) or "")


@pytest.mark.parametrize("error", [0.5, float("nan")])
def test_a_version_that_computes_something_else_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, error: float
) -> None:
    monkeypatch.setattr(vino_able, "trial_error", lambda: error)
    assert "of the scores' spread in a trial" in (vino_able.refusal(MULTILINGUAL) or "")


def test_a_version_with_another_operator_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> float:
        raise RuntimeError("Exception from core.cpp:1:\nPagedAttention has 29 inputs\n")

    monkeypatch.setattr(vino_able, "trial_error", fails)
    told = vino_able.refusal(MULTILINGUAL)
    assert told == "openvino does not work here (RuntimeError: PagedAttention has 29 inputs)"


def test_the_trial_would_notice_one_position_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """By ONNX Runtime, which runs everywhere: what it says, and what it says of a prompt that is cut."""
    pytest.importorskip("onnxruntime")
    from nightingale.accel.cpu.runner import CpuRunner

    def opened(t3: T3, packed: Packed, first: int) -> CpuRunner:
        runner = CpuRunner(t3, packed.graph, **vino_able.ROOM)
        begin = runner.begin
        runner.begin = lambda slot, prompt: begin(slot, prompt[:, first:])  # type: ignore[method-assign]
        return runner

    monkeypatch.undo()
    whole, cut = (vino_able.trial_error(partial(opened, first=first)) for first in (0, 1))
    assert 2 * whole < vino_able.NEAR < cut / 2


def test_the_trial_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def counted() -> float:
        tried.append(1)
        return 0.01

    monkeypatch.setattr(vino_able, "trial_error", counted)
    for _ in range(3):
        vino_able.refusal(MULTILINGUAL)
    assert len(tried) == 1
