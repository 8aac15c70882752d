"""When the kernels run T3, and the reasons when they do not. Their steps are in test_int8_runners.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from nightingale.backends.base import Machine, ModelInfo, Setup
from nightingale.backends.cpu import CpuBackend, capabilities
from nightingale.backends.profiles import PROFILES
from nightingale.backends.shared import capability_checks
from nightingale.backends.shared.packed_t3 import pack
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.t3.config import MULTILINGUAL, NANO
from nightingale.models.chatterbox.t3.model import T3

pytest.importorskip("llvmlite")
from nightingale.backends.cpu.kernels import target
from nightingale.backends.cpu.kernels.int8_gemm import QUANT_BLOCK
from nightingale.backends.cpu.kernels.target import select_target
from nightingale.backends.cpu.kernels.vector_math import LANES
from nightingale.models.defaults import MODEL_DEFAULTS


def reason(config: object) -> str:
    return capabilities.unsupported_reason(config) or ""  # type: ignore[arg-type]


@pytest.fixture
def supported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which the kernels run."""
    monkeypatch.setattr(target, "detect_target", lambda: target.NEON)
    monkeypatch.setattr(capability_checks, "find_spec", lambda name: name)
    monkeypatch.setattr(capabilities, "t3_test_error", lambda config, _open: 0.01)
    capabilities._t3_reason.cache_clear()
    yield
    capabilities._t3_reason.cache_clear()


@pytest.mark.usefixtures("supported")
def test_it_is_for_large_models_of_even_widths() -> None:
    for name in ("multilingual", "turbo", "nano"):
        assert capabilities.unsupported_reason(PRESETS[name].t3) is None
    assert "its width is 320" in reason(PRESETS["wren"].t3)
    wren = ModelInfo(name="wren", preset=PRESETS["wren"], defaults=MODEL_DEFAULTS["wren"])
    machine = Machine(device="cpu", name="cpu", instructions="NEON")
    setup = Setup(profile=PROFILES["fast"], machine=machine, precision="int8")
    assert "such a small model" in (CpuBackend().unsupported_reason("decoder", wren, setup) or "")
    odd = replace(MULTILINGUAL, backbone=replace(MULTILINGUAL.backbone, heads=128))
    assert "its attention heads have 8 channels" in reason(odd)


def test_the_sizes_that_are_checked_are_those_of_the_kernels() -> None:
    """They are written twice, because the check must not need llvmlite."""
    assert (capabilities.WIDTH_MULTIPLE, capabilities.HEAD_DIM_MULTIPLE) == (QUANT_BLOCK, 2 * LANES)


def test_the_target_follows_from_the_processor() -> None:
    vnni = {"avx512vnni": True, "avx512bw": True, "avx512vl": True}
    assert _selected("x86_64", vnni) == "avx512"
    assert _selected("AMD64".lower(), {"avxvnni": True, "f16c": True}) == "avxvnni"
    assert "VNNI" in _selected("x86_64", {"avx2": True})
    assert _selected("aarch64", {}, has_dotprod=True) == "neon"
    assert "dotprod" in _selected("arm64", {})
    assert "'riscv64'" in _selected("riscv64", {})


def _selected(machine: str, features: dict[str, bool], *, has_dotprod: bool = False) -> str:
    selected = select_target(machine, features, has_dotprod=has_dotprod)
    return selected if isinstance(selected, str) else selected.isa


@pytest.mark.usefixtures("supported")
def test_a_processor_without_the_instruction_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "detect_target", lambda: "this processor has no such instruction")
    assert reason(MULTILINGUAL) == "this processor has no such instruction"


@pytest.mark.usefixtures("supported")
def test_without_the_package_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability_checks, "find_spec", lambda _name: None)
    assert "pip install" in reason(MULTILINGUAL)


@pytest.mark.usefixtures("supported")
@pytest.mark.parametrize("error", [0.5, float("nan")])
def test_kernels_that_fail_their_self_test_are_not_used(
    monkeypatch: pytest.MonkeyPatch, error: float
) -> None:
    monkeypatch.setattr(capabilities, "t3_test_error", lambda config, _open: error)
    assert "failed their self-test" in reason(MULTILINGUAL)


@pytest.mark.usefixtures("supported")
def test_a_compiler_that_fails_gives_a_reason_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_config: object, _open: object) -> float:
        raise RuntimeError("LLVM IR parsing error\n<string>:170:18: error: unknown intrinsic\n")

    monkeypatch.setattr(capabilities, "t3_test_error", fails)
    assert reason(NANO) == "llvmlite does not work here (RuntimeError: LLVM IR parsing error)"


@pytest.mark.usefixtures("supported")
def test_the_self_test_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[object] = []
    monkeypatch.setattr(
        capabilities, "t3_test_error", lambda config, _open: float(tested.append(config) or 0.01)
    )
    for _ in range(3):
        reason(MULTILINGUAL)
    assert len(tested) == 1


@pytest.mark.parametrize("rotary", [True, False])
def test_the_self_test_detects_a_missing_position(rotary: bool) -> None:
    """With ONNX Runtime, which runs everywhere: once with the whole prompt, once without its beginning."""
    pytest.importorskip("onnxruntime")
    from backends.onnx.runners import runner_over

    from nightingale.backends.onnx.runner import OnnxRunner
    from nightingale.backends.onnx.torch_model import GRAPH_FILE, OnnxFormat

    def open_runner(t3: T3, folder: Path, first: int) -> OnnxRunner:
        packed = pack(t3.config, t3.state_dict(), OnnxFormat(), cache_dir=folder, source="test")
        runner = runner_over(t3, packed / GRAPH_FILE, **capabilities.TEST_POOL)
        prefill = runner.prefill_embeddings
        runner.prefill_embeddings = lambda slot, x: prefill(slot, x[:, first:])  # type: ignore[method-assign]
        return runner

    config = capabilities.TEST_CONFIGS[rotary]
    whole, cut = (capabilities.t3_test_error(config, partial(open_runner, first=first)) for first in (0, 1))
    assert 2 * whole < capabilities.MAX_ERROR < cut / 2
