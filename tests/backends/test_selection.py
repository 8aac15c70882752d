"""Backend selection: chosen once, explained in words, and never silently slow."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from nightingale import TTS
from nightingale.backends import BACKENDS
from nightingale.backends.base import DEFAULT_SLOTS, Machine, ModelInfo
from nightingale.backends.profiles import OFFICIAL, PROFILES, profile_named
from nightingale.backends.selection import (
    Plan,
    default_slots,
    find_machine,
    let_idle_threads_sleep,
    select,
)
from nightingale.cli.commands import app
from nightingale.engine.load import Model, plan_named
from nightingale.engine.noise_model import NOISE
from nightingale.errors import ConfigError, NightingaleError
from nightingale.install import install_command
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.defaults import MODEL_DEFAULTS

H200 = Machine(device="cuda:0", name="H200", instructions="sm_90", free_bytes=130 << 30)
CPU = Machine(device="cpu", name="cpu", instructions="AVX512")
Reasons = Callable[..., None]


def info(name: str) -> ModelInfo:
    return ModelInfo(name=name, preset=PRESETS[name], defaults=MODEL_DEFAULTS[name])


def plan(name: str, machine: Machine, profile: str, dtype: str = "auto", **changes: int) -> Plan:
    return select(BACKENDS, info(name), machine, replace(profile_named(profile), **changes), dtype=dtype)


def chosen(made: Plan) -> list[tuple[str, str]]:
    return [(choice.backend.name, choice.precision) for choice in made.choices]


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> Reasons:
    """Replace `unsupported_reason` of the CPU backends: reasons(onnx=None, cpu="no llvmlite")."""

    def answer(**by_name: str | None) -> None:
        for backend in BACKENDS:
            if backend.name in by_name:
                reason = by_name[backend.name]
                monkeypatch.setattr(backend, "unsupported_reason", lambda *_, reason=reason: reason)

    answer(onnx="not here", cpu="not here")
    return answer


def test_exact_uses_the_reference_everywhere() -> None:
    for machine in (H200, CPU):
        made = plan("multilingual", machine, "exact")
        assert chosen(made) == [("torch", "float32")] * 2
        assert made.warnings == []


def test_a_gpu_runs_cuda_graphs_in_the_profiles_precision() -> None:
    for name in ("default", "balanced+stream=block", "fast+stream=block"):
        made = plan("multilingual", H200, name)
        assert chosen(made) == [("cuda", "bfloat16")] * 2
        assert made.warnings == []


def test_a_precision_that_was_asked_for_is_kept(reasons: Reasons) -> None:
    assert plan("multilingual", H200, "fast", dtype="float32").decoder.precision == "float32"
    assert plan("multilingual", CPU, "balanced", dtype="bfloat16").decoder.precision == "bfloat16"
    reasons(cpu=None, onnx=None)
    assert plan("multilingual", CPU, "default").decoder.precision == "int8"
    for name in ("multilingual", "wren"):
        assert plan(name, CPU, "default", dtype="float32").decoder.precision == "float32"


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (replace(H200, instructions="sm_75"), "bfloat16"),
        (replace(H200, free_bytes=1 << 30), "fewer slots"),
        (replace(H200, problem="this build of PyTorch does not support sm_90"), "does not support sm_90"),
    ],
    ids=["old", "full", "unknown"],
)
def test_why_graphs_cannot_be_used_is_a_warning(machine: Machine, words: str) -> None:
    made = plan("multilingual", machine, "fast")
    assert chosen(made)[0] == ("torch", "float32")
    assert any(words in warning for warning in made.warnings), made.warnings


@pytest.mark.parametrize(
    ("name", "device"),
    [(name, device) for name in OFFICIAL for device in ("cuda", "mlx")]
    + [(name, "cpu") for name in ("wren", "noise")],
)
def test_auto_takes_a_gpu_only_for_models_that_are_measured_to_be_faster_there(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = {"mlx": Machine(device="mlx", name="Apple M4", instructions="Metal"), "cuda": H200}
    about = NOISE if name == "noise" else info(name)
    for kind, gpu in machines.items():
        asked: list[str] = []

        def probe(device: str, gpu: Machine = gpu, asked: list[str] = asked) -> Machine | None:
            asked.append(device)
            return gpu if device in ("auto", gpu.kind) else None

        for backend in BACKENDS:
            monkeypatch.setattr(backend, "probe", probe)
        assert find_machine(BACKENDS, kind, about) == gpu, "asked for by name"
        asked.clear()
        found = find_machine(BACKENDS, "auto", about)
        if device == "cpu":
            assert found.device == "cpu"
            assert found.auto_reason == f"no GPU path is measured faster for {name}"
            assert asked == [], "a probe would import PyTorch"
            made = select(BACKENDS, about, found, PROFILES["balanced"])
            assert {choice.setup.machine.kind for choice in made.choices} == {"cpu"}
        elif device == kind:
            assert found == gpu


def test_doctor_says_why_auto_took_the_cpu() -> None:
    told = CliRunner().invoke(app, ["doctor", "--plan", "balanced", "--model", "wren"]).stdout
    assert "auto      cpu, because no GPU path is measured faster for wren" in told.splitlines()
    told = CliRunner().invoke(app, ["doctor", "--plan", "balanced", "--device", "cpu"]).stdout
    assert "auto" not in told


def test_more_slots_need_more_memory() -> None:
    small = replace(H200, free_bytes=20 << 30)
    assert plan("multilingual", small, "fast", slots=8).decoder.backend.name == "cuda"
    assert plan("multilingual", small, "fast", slots=64).decoder.backend.name == "torch"


def test_a_block_causal_flow_is_rendered_by_the_reference_with_a_warning() -> None:
    made = plan("wren", H200, "fast")
    assert chosen(made) == [("cuda", "bfloat16"), ("torch", "float32")]
    assert any("block-causal" in warning for warning in made.warnings)


def test_a_backend_for_another_device_is_skipped_without_a_warning(reasons: Reasons) -> None:
    made = plan("multilingual", CPU, "balanced")
    assert made.warnings == []
    assert ("cuda", "it runs on cuda, not on cpu") in [(s.backend, s.reason) for s in made.decoder.skipped]


def test_a_problem_of_the_machine_is_logged_once(
    noise_model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    made = select(BACKENDS, noise_model.info, find_machine(BACKENDS, "cpu"), PROFILES["balanced"])
    made = replace(made, machine=replace(made.machine, problem="too old a driver"))
    watched = caplog.at_level(logging.WARNING, logger="nightingale.engine")
    with watched, TTS.over(noise_model, "balanced", plan=made) as tts:
        assert tts.plan is made
        tts.say("Hello.", seed=1)
    assert [record.getMessage() for record in caplog.records] == ["noise, balanced: too old a driver"]


def test_the_planned_kv_cache_is_what_is_allocated(tiny_model: Model) -> None:
    with TTS.over(tiny_model, "exact") as tts:
        slots = tts.plan.profile.slots
        assert slots == DEFAULT_SLOTS
        assert tts._worker.decoder.runner.kv_bytes == tiny_model.info.kv_cache_bytes(slots, 4)


@pytest.mark.parametrize(("name", "slots"), [("multilingual", (64, 16, 8)), ("turbo", (128, 32, 8))])
def test_a_gpu_has_as_many_slots_as_its_memory_holds(name: str, slots: tuple[int, ...]) -> None:
    info = ModelInfo(name=name, preset=PRESETS[name], defaults=MODEL_DEFAULTS[name])
    machines = [replace(H200, free_bytes=gib << 30) for gib in (140, 40, 1)]
    assert tuple(default_slots(info, machine) for machine in machines) == slots


def test_a_plan_needs_no_weights() -> None:
    made, missing = plan_named("multilingual", PROFILES["fast"], device="cpu")
    assert made.model == "multilingual"
    assert missing is not None
    assert "t3" in missing
    made, missing = plan_named("noise", PROFILES["fast"], device="cpu")
    assert chosen(made) == [("noise", "float32")] * 2
    assert missing is None
    with pytest.raises(NightingaleError):
        plan_named("trubo", PROFILES["fast"], device="cpu")


def test_doctor_prints_a_plan_as_a_table_and_as_json() -> None:
    told = CliRunner().invoke(app, ["doctor", "--plan", "fast", "--model", "turbo"])
    assert told.exit_code == 0
    made, _ = plan_named("turbo", "fast", device="cpu")
    assert made.summary.startswith("turbo, fast, on cpu (")
    assert told.stdout.splitlines()[0] == made.heading
    assert "stream    segment" in told.stdout.splitlines()
    for role in ("decoder", "renderer"):
        assert any(line.startswith(role) for line in told.stdout.splitlines())
    for backend in BACKENDS:
        assert backend.name in told.stdout, "every backend answers"
    assert "weights" in told.stdout
    data = json.loads(CliRunner().invoke(app, ["doctor", "--plan", "exact", "--json"]).stdout)
    assert [choice["backend"] for choice in data["choices"]] == ["torch"] * 2
    assert CliRunner().invoke(app, ["doctor", "--plan", "quick"]).exit_code != 0


def test_int8_is_used_where_it_pays_and_its_absence_is_a_warning(reasons: Reasons) -> None:
    reasons(onnx=None)
    assert chosen(plan("multilingual", CPU, "fast"))[0] == ("onnx", "int8")
    assert plan("multilingual", CPU, "balanced").decoder.precision == "float32", (
        "its bound is not tested here"
    )
    reasons(onnx="int8 products are no faster")
    made = plan("multilingual", CPU, "fast")
    assert made.decoder.backend.name == "torch"
    assert made.warnings == ["decoder: torch float32 is used, not onnx int8: int8 products are no faster"]


def test_generated_kernels_are_preferred_and_missed_without_a_warning(reasons: Reasons) -> None:
    reasons(cpu=None, onnx=None)
    assert chosen(plan("multilingual", CPU, "fast"))[0] == ("cpu", "int8")
    reasons(cpu="llvmlite is not installed", onnx=None)
    made = plan("multilingual", CPU, "fast")
    assert chosen(made)[0] == ("onnx", "int8")
    assert "llvmlite is not installed" in [s.reason for s in made.decoder.skipped]
    assert made.warnings == []


@pytest.mark.parametrize("name", ["english", "multilingual", "turbo", "nano"])
def test_official_models_decode_in_int8_on_a_cpu_that_passes_the_self_test(
    name: str, reasons: Reasons
) -> None:
    reasons(cpu=None)
    assert chosen(plan(name, CPU, "default"))[0] == ("cpu", "int8")
    reasons(cpu="the kernels failed their self-test")
    made = plan(name, CPU, "default")
    assert chosen(made) == [("torch", "float32")] * 2
    assert made.warnings == []
    reasons(cpu=None, onnx=None)
    assert chosen(plan("wren", CPU, "default"))[0][0] == "onnx"


@pytest.mark.parametrize("name", ["turbo", "nano"])
def test_int4_is_an_option_of_models_with_one_row_and_else_as_fast(name: str, reasons: Reasons) -> None:
    reasons(cpu=None)
    made = plan(name, CPU, "balanced+decoder=int4")
    assert (chosen(made)[0], made.warnings) == (("cpu", "int4"), [])
    made = plan(name, H200, "balanced+decoder=int4")
    assert (chosen(made)[0], made.warnings) == (("cuda", "bfloat16"), [])
    reasons(cpu="the kernels failed their self-test", onnx=None)
    made = plan(name, CPU, "balanced+decoder=int4")
    assert chosen(made)[0] == ("onnx", "int8")
    assert made.warnings == ["decoder: onnx int8 is used, not cpu int4: the kernels failed their self-test"]


def test_a_model_that_nothing_can_run_is_refused(reasons: Reasons) -> None:
    reasons(onnx="no", cpu="no", torch="PyTorch is not installed")
    with pytest.raises(ConfigError, match=r"no backend can run the decoder.*PyTorch is not installed"):
        plan("turbo", CPU, "fast")


@pytest.mark.parametrize("name", ["turbo", "nano", "english", "multilingual"])
def test_without_pytorch_an_official_model_is_refused_before_its_download(
    name: str, reasons: Reasons, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("looked for files that nothing here can run")

    reasons(onnx="no", cpu="no", torch="PyTorch is not installed")
    monkeypatch.setattr("nightingale.engine.load.locate", refuse)
    with pytest.raises(ConfigError, match="PyTorch is not installed") as caught:
        TTS(name)
    assert install_command("torch") in str(caught.value)
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in str(caught.value)


@pytest.mark.parametrize(
    ("machine", "is_imported", "before", "after"),
    [
        ("x86_64", False, None, "PASSIVE"),
        ("AMD64", False, "ACTIVE", "ACTIVE"),
        ("x86_64", True, None, None),
        ("aarch64", False, None, None),
    ],
)
def test_on_x86_idle_threads_of_pytorch_sleep(
    monkeypatch: pytest.MonkeyPatch, machine: str, is_imported: bool, before: str | None, after: str | None
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    if is_imported:
        monkeypatch.setitem(sys.modules, "torch", sys)
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", before or "")
    if before is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    let_idle_threads_sleep()
    assert os.environ.get("OMP_WAIT_POLICY") == after
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
