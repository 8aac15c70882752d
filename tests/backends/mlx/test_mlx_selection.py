"""MLX is chosen on a Mac by itself, and elsewhere when it is asked for; other backends run what it cannot."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nightingale.backends import BACKENDS
from nightingale.backends.base import Machine, ModelInfo, Setup
from nightingale.backends.mlx import MlxBackend, capabilities, host_blas
from nightingale.backends.profiles import PROFILES, profile_named
from nightingale.backends.selection import Plan, find_machine, select
from nightingale.cli.commands import app
from nightingale.engine.noise_model import NOISE
from nightingale.errors import DeviceError
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.t3.config import LlamaConfig
from nightingale.models.defaults import MODEL_DEFAULTS

MAC = Machine(device="mlx", name="Apple M4", instructions="Metal")


def info_of(name: str) -> ModelInfo:
    return ModelInfo(name=name, preset=PRESETS[name], defaults=MODEL_DEFAULTS[name])


def plan_of(name: str, profile: str, machine: Machine = MAC, *, dtype: str = "auto") -> Plan:
    return select(BACKENDS, info_of(name), machine, profile_named(profile), dtype=dtype)


def chosen(plan: Plan) -> list[tuple[str, str]]:
    return [(choice.backend.name, choice.precision) for choice in plan.choices]


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "missing_reason", lambda: None)


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("name", "profile", "decoder", "renderer"),
    [
        ("nano", "exact", "float32", "float32"),
        ("english", "balanced", "bfloat16", "float32"),
        ("wren", "balanced", "float32", "float32"),
        ("turbo", "fast", "int8", "float32"),
    ],
)
def test_mlx_takes_both_roles_of_every_model(name: str, profile: str, decoder: str, renderer: str) -> None:
    plan = plan_of(name, profile)
    assert chosen(plan) == [("mlx", decoder), ("mlx", renderer)]
    assert plan.warnings == []
    assert plan.decoder.setup.machine == MAC


@pytest.mark.usefixtures("_installed")
def test_a_floating_point_precision_can_be_asked_for() -> None:
    assert chosen(plan_of("english", "balanced", dtype="float32"))[0] == ("mlx", "float32")


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("name", ["english", "nano", "wren"])
def test_precisions_can_be_asked_for(name: str) -> None:
    assert chosen(plan_of(name, "balanced+decoder=int4+renderer=float16")) == [
        ("mlx", "int4"),
        ("mlx", "float16"),
    ]
    assert chosen(plan_of(name, "balanced+decoder=int8"))[0] == ("mlx", "int8")


def test_a_mac_without_mlx_uses_its_cpu_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "missing_reason", lambda: "mlx is not installed")
    monkeypatch.setattr("sys.platform", "darwin")
    plan = plan_of("turbo", "balanced")
    assert {name for name, _ in chosen(plan)} <= {"torch", "onnx"}
    assert [choice.setup.machine.device for choice in plan.choices] == ["cpu", "cpu"]
    assert "mlx is not installed" in plan.warnings[0]
    monkeypatch.setattr(capabilities, "is_apple_silicon", lambda: True)
    assert MlxBackend().probe("auto") is None
    with pytest.raises(DeviceError, match="mlx is not installed"):
        find_machine(BACKENDS, "mlx")


def test_kernels_that_were_not_measured_on_macos_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    (cpu,) = (backend for backend in BACKENDS if backend.name == "cpu")
    machine = Machine(device="cpu", name="cpu", instructions="NEON")
    setup = Setup(profile=PROFILES["fast"], machine=machine, precision="int8")
    assert "macOS" in str(cpu.unsupported_reason("decoder", info_of("english"), setup))


@pytest.mark.parametrize(
    ("options", "precision", "reason"),
    [
        ("balanced", "fp8", "not in fp8"),
    ],
)
def test_what_mlx_cannot_do_has_a_reason(options: str, precision: str, reason: str) -> None:
    setup = Setup(profile=profile_named(options), machine=MAC, precision=precision)
    assert reason in str(MlxBackend().unsupported_reason("decoder", info_of("english"), setup))


def test_a_width_that_no_group_divides_is_refused() -> None:
    info = info_of("english")
    t3 = replace(info.preset.t3, backbone=LlamaConfig(width=1000, heads=10))
    odd = replace(info, preset=replace(info.preset, t3=t3))
    setup = Setup(profile=PROFILES["fast"], machine=MAC, precision="int4")
    assert "its width is 1000, not a multiple of 32" in str(
        MlxBackend().unsupported_reason("decoder", odd, setup)
    )


@pytest.mark.usefixtures("_installed")
def test_a_mac_with_too_little_memory_uses_its_cpu_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    small = replace(MAC, free_bytes=int(1.8 * 2**30))
    plan = select(BACKENDS, info_of("english"), small, PROFILES["balanced"])
    assert plan.decoder.backend.name != "mlx"
    assert "mlx bfloat16: it needs 2.0 GiB of memory, and the GPU may use 1.8 GiB" in plan.warnings[0]
    assert chosen(select(BACKENDS, info_of("english"), small, PROFILES["fast"]))[0] == ("mlx", "int8")


def test_a_model_without_weights_is_refused() -> None:
    setup = Setup(profile=PROFILES["exact"], machine=MAC, precision="float32")
    assert MlxBackend().unsupported_reason("renderer", NOISE, setup) == "the model has no weights"


@pytest.mark.parametrize("old", ["0.22.1", "0.31rc1", "0.9.dev20260101"])
def test_an_old_mlx_is_refused(monkeypatch: pytest.MonkeyPatch, old: str) -> None:
    monkeypatch.setattr(capabilities, "find_spec", lambda name: object())
    monkeypatch.setattr(capabilities, "version", lambda name: old)
    assert f"mlx {old} is too old" in str(capabilities.missing_reason())


def test_an_mlx_that_cannot_be_imported_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel for another system, or an old C library."""
    monkeypatch.setattr(capabilities, "find_spec", lambda name: object())
    monkeypatch.setattr(capabilities, "version", lambda name: "0.32.0")
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    assert "mlx" in str(capabilities.missing_reason())
    with pytest.raises(DeviceError, match="mlx"):
        capabilities.probe("mlx")


@pytest.mark.parametrize("model", ["english", "multilingual", "turbo", "nano"])
def test_the_figures_of_the_docs_are_those_of_their_formulas(model: str) -> None:
    """They were not measured on a Mac: docs/apple.md says so, and gives the formulas."""
    page = (Path(__file__).parents[3] / "docs" / "apple.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line[:1] == "|"]
    info = ModelInfo(name=model, preset=PRESETS[model], defaults=MODEL_DEFAULTS[model])
    needed = [capabilities.needed_bytes(info, one) / 2**30 for one in ("float32", "bfloat16", "int8", "int4")]
    (memory,) = [row[1:] for row in rows if model in row[0].split(", ") and "GiB" in row[1]]
    assert memory == [f"{one:.1f} GiB" for one in needed]
    t3 = PRESETS[model].t3
    for row in rows:
        if row[0].startswith(f"{model}, "):
            precision = row[0].removeprefix(f"{model}, ")
            tables = 2 * t3.backbone.width * (t3.text_vocab + t3.speech_vocab)  # not read for a token
            read = capabilities.weight_bytes(t3, precision) - tables
            if precision in ("bfloat16", "int8"):
                assert row[1:] == [f"{25 * read / gb / 1e9:.2f}" for gb in (68, 120, 546)]


def test_doctor_on_a_mac_says_what_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlx.core")
    monkeypatch.setattr(capabilities, "is_apple_silicon", lambda: True)
    printed = CliRunner().invoke(app, ["doctor", "--plan", "balanced", "--model", "wren", "--device", "mlx"])
    assert printed.exit_code == 0, printed.output
    lines = [line.split() for line in printed.stdout.splitlines()]
    for role in ("decoder", "renderer"):
        assert any({role, "mlx", "float32"} <= set(words) for words in lines), printed.stdout


def test_a_fast_blas_is_loaded_before_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    class Library:
        cblas_sgemm = None

        def __init__(self, name: str, mode: int) -> None:
            loaded.append(name)
            if name == "damaged":
                raise OSError

    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(host_blas, "_candidates", lambda: ["damaged", "good"])
    monkeypatch.setattr(host_blas.ctypes, "CDLL", Library)
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    assert host_blas.load_fast_blas.__wrapped__() == "good"
    assert loaded == ["damaged", "good"]
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    assert host_blas.load_fast_blas.__wrapped__() is None


def test_linux_uses_mlx_only_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlx.core")
    assert MlxBackend().probe("auto") is None
    assert MlxBackend().probe("cpu") is None
    assert find_machine(BACKENDS, "mlx").device == "mlx"
    monkeypatch.setattr(capabilities, "is_apple_silicon", lambda: True)
    assert find_machine(BACKENDS, "auto").device == "mlx"
