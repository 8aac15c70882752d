"""When machine code may run T3, and that it says why not. Its steps are in test_cpu_runner.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from nightingale.backends.cpu import capabilities as able
from nightingale.backends.shared.packed_t3 import pack
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, NANO
from nightingale.models.chatterbox.t3.model import T3

pytest.importorskip("llvmlite")
from nightingale.backends.cpu import t3_kernels as kernels
from nightingale.backends.cpu import target
from nightingale.backends.cpu.target import Target, chosen

FACTS = {"triple": "", "cpu": "", "features": ""}


@pytest.fixture
def willing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which nothing stands against it."""
    some = Target(name="neon", lanes=4, signed=True, prefetch=0, looks_a_ms=1)
    monkeypatch.setattr(target, "of_this_machine", lambda: some)
    monkeypatch.setattr(able, "find_spec", lambda name: name)
    monkeypatch.setattr(able, "trial_error", lambda config, opened: 0.01)
    able._tried.cache_clear()
    yield
    able._tried.cache_clear()


@pytest.mark.usefixtures("willing")
def test_it_is_for_large_models_of_even_widths() -> None:
    for name in ("multilingual", "turbo", "nano"):
        assert able.refusal(PRESETS[name].t3) is None
    assert "its width is 320" in (able.refusal(PRESETS["wren"].t3) or "")
    small = able.TRIALS[True]
    assert "so small a model" in (able.refusal(small) or "")
    odd = replace(MULTILINGUAL, backbone=replace(MULTILINGUAL.backbone, heads=128))
    assert "its heads are 8 wide" in (able.refusal(odd) or "")


def test_what_is_asked_of_widths_is_what_the_code_needs() -> None:
    """It is written twice, since the question must not need the package."""
    assert (able.BLOCK, able.HALF_HEAD) == (kernels.BLOCK, kernels.LANES)


def test_the_processor_decides() -> None:
    vnni = {"avx512vnni": True, "avx512bw": True, "avx512vl": True}
    assert _named("x86_64", vnni) == "avx512"
    assert _named("AMD64".lower(), {"avxvnni": True, "f16c": True}) == "avxvnni"
    assert "VNNI" in _named("x86_64", {"avx2": True})
    assert _named("aarch64", {}, dot_product=True) == "neon"
    assert "dotprod" in _named("arm64", {})
    assert "'riscv64'" in _named("riscv64", {})


def _named(machine: str, found: dict[str, bool], *, dot_product: bool = False) -> str:
    made = chosen(machine, found, FACTS, dot_product)
    return made if isinstance(made, str) else made.name


@pytest.mark.usefixtures("willing")
def test_a_processor_without_the_instruction_is_refused_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "of_this_machine", lambda: "this processor has no such instruction")
    assert able.refusal(MULTILINGUAL) == "this processor has no such instruction"


@pytest.mark.usefixtures("willing")
def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(able, "find_spec", lambda _name: None)
    assert "pip install" in (able.refusal(MULTILINGUAL) or "")


@pytest.mark.usefixtures("willing")
@pytest.mark.parametrize("error", [0.5, float("nan")])
def test_code_that_computes_something_else_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, error: float
) -> None:
    monkeypatch.setattr(able, "trial_error", lambda config, opened: error)
    assert "answers' spread in a trial" in (able.refusal(MULTILINGUAL) or "")


@pytest.mark.usefixtures("willing")
def test_a_version_that_compiles_nothing_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_config: object, _opened: object) -> float:
        raise RuntimeError("LLVM IR parsing error\n<string>:170:18: error: unknown intrinsic\n")

    monkeypatch.setattr(able, "trial_error", fails)
    told = able.refusal(NANO)
    assert told == "llvmlite does not work here (RuntimeError: LLVM IR parsing error)"


@pytest.mark.usefixtures("willing")
def test_the_trial_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(able, "trial_error", lambda config, opened: float(tried.append(config) or 0.01))
    for _ in range(3):
        able.refusal(MULTILINGUAL)
    assert len(tried) == 1


@pytest.mark.parametrize("rotary", [True, False])
def test_the_trial_would_notice_one_position_less(rotary: bool) -> None:
    """By ONNX Runtime, which runs everywhere: what it says, and what it says of a prompt that is cut."""
    pytest.importorskip("onnxruntime")
    from nightingale.backends.onnx.runner import CpuRunner

    def opened(t3: T3, home: Path, first: int) -> CpuRunner:
        packed = pack(t3.config, t3.state_dict(), home=home, source="trial")
        runner = CpuRunner(t3, packed.graph, **able.ROOM)
        begin = runner.begin
        runner.begin = lambda slot, prompt: begin(slot, prompt[:, first:])  # type: ignore[method-assign]
        return runner

    whole, cut = (able.trial_error(able.TRIALS[rotary], partial(opened, first=first)) for first in (0, 1))
    assert 2 * whole < able.NEAR < cut / 2
