"""What runs where, and why: decided once, said in words, never silently slow."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from nightingale import TTS
from nightingale.backends.onnx import capabilities as able
from nightingale.backends.cpu import capabilities as native_able
from nightingale.cli.main import app
from nightingale.engine.guests import GUESTS
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.engine.load import plan_for, plan_named
from nightingale.engine.model import Model
from nightingale.engine.plan import Machine, Plan, Sizes, make_plan
from nightingale.backends.profiles import PROFILES, profile_named
from nightingale.errors import NightingaleError
from nightingale.models.chatterbox.presets import PRESETS

H200 = Machine(device="cuda:0", name="H200", instructions="sm_90", free_bytes=130 << 30)
CPU = Machine(device="cpu", name="cpu", instructions="AVX512")


def sizes(name: str) -> Sizes:
    return Sizes(name=name, t3=PRESETS[name].t3, flow=PRESETS[name].flow, defaults=MODEL_DEFAULTS[name])


def plan(name: str, machine: Machine, profile: str, dtype: str = "auto", **changes: int) -> Plan:
    return make_plan(sizes(name), machine, replace(PROFILES[profile], **changes), GUESTS, dtype=dtype)


def ways(made: Plan) -> list[tuple[str, str]]:
    return [(part.way, part.dtype) for part in (made.t3, made.flow, made.vocoder)]


def test_exact_is_plain_everywhere() -> None:
    for machine in (H200, CPU):
        made = plan("multilingual", machine, "exact")
        assert ways(made) == [("plain", "float32")] * 3
        assert made.refusals == []


def test_a_gpu_is_used_by_graphs_in_the_profiles_precision() -> None:
    assert ways(plan("multilingual", H200, "balanced")) == [
        ("graphs", "bfloat16"),
        ("graphs", "float32"),
        ("graphs", "float32"),
    ]
    assert ways(plan("turbo", H200, "fast"))[1] == ("graphs", "bfloat16")


def test_a_precision_that_was_asked_for_is_kept() -> None:
    assert plan("multilingual", H200, "fast", dtype="float32").t3.dtype == "float32"
    assert plan("multilingual", CPU, "balanced", dtype="bfloat16").t3.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("machine", "told"),
    [
        (replace(H200, instructions="sm_75"), "bfloat16"),
        (replace(H200, free_bytes=1 << 30), "fewer slots"),
        (replace(H200, obstacle="this build of torch knows no sm_90"), "knows no sm_90"),
    ],
    ids=["old", "full", "unknown"],
)
def test_what_stands_against_graphs_is_said_and_the_plain_way_taken(machine: Machine, told: str) -> None:
    made = plan("multilingual", machine, "fast")
    assert (made.t3.way, made.t3.dtype) == ("plain", "float32")
    assert any(told in refusal for refusal in made.refusals), made.refusals


def test_more_slots_need_more_memory() -> None:
    small = replace(H200, free_bytes=20 << 30)
    assert plan("multilingual", small, "fast", slots=8).t3.way == "graphs"
    assert plan("multilingual", small, "fast", slots=64).t3.way == "plain"


def test_a_flow_that_remembers_its_own_speech_is_rendered_plainly_and_that_is_said() -> None:
    made = plan("wren", H200, "fast")
    assert (made.t3.way, made.flow.way, made.vocoder.way) == ("graphs", "plain", "plain")
    assert "block-causal" in made.flow.refused[0]


def test_a_way_for_another_kind_of_device_is_no_refusal() -> None:
    made = plan("multilingual", CPU, "balanced")
    assert made.refusals == []
    assert "cpu" in made.t3.why


def test_an_old_driver_is_mentioned_once_at_load(
    tiny_model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    made = plan_for(tiny_model, PROFILES["balanced"])
    told = replace(made, machine=replace(made.machine, obstacle="too old a driver"))
    watched = caplog.at_level(logging.WARNING, logger="nightingale.engine")
    with watched, TTS.over(tiny_model, "balanced", plan=told) as tts:
        assert tts.plan is told
        tts.say("Hello.", seed=1)
    assert [record.getMessage() for record in caplog.records] == ["noise, balanced: too old a driver"]


def test_the_memory_that_is_planned_is_what_is_taken(tiny_model: Model) -> None:
    made = plan_for(tiny_model, PROFILES["balanced"])
    made = replace(made, t3=replace(made.t3, way="plain"))  # onnxruntime has a position to spare in each slot
    speakers = tiny_model.networks
    own = Sizes(name="noise", t3=speakers.t3.config, flow=speakers.flow.config, defaults=tiny_model.defaults)
    with TTS.over(tiny_model, "balanced", plan=made) as tts:
        assert tts._worker.decoder.bytes == own.t3_memory_bytes(PROFILES["balanced"].slots, 4)


def test_a_plan_can_be_made_for_weights_that_are_not_here_and_says_so() -> None:
    made, missing = plan_named("multilingual", PROFILES["fast"], device="cpu")
    # With the extra `cpu` installed, eight bits are granted; without it, refused in words.
    assert made.model == "multilingual"
    assert made.t3.way in (("plain",) if made.t3.refused else ("int8", "native"))
    assert missing is not None
    assert "t3" in missing
    made, missing = plan_named("noise", PROFILES["fast"], device="cpu")
    assert missing is None
    with pytest.raises(NightingaleError):
        plan_named("trubo", PROFILES["fast"], device="cpu")


def test_the_doctor_prints_a_plan_as_a_table_and_as_json() -> None:
    told = CliRunner().invoke(app, ["doctor", "--plan", "fast", "--model", "turbo"])
    assert told.exit_code == 0
    assert "turbo, fast, on cpu" in told.stdout
    for stage in ("t3", "flow", "vocoder", "prompt"):
        assert any(line.startswith(stage) for line in told.stdout.splitlines())
    assert "weights" in told.stdout
    data = json.loads(CliRunner().invoke(app, ["doctor", "--plan", "exact", "--json"]).stdout)
    assert [part["way"] for part in data["parts"]] == ["plain"] * 4
    assert CliRunner().invoke(app, ["doctor", "--plan", "quick"]).exit_code != 0


def test_eight_bits_are_planned_where_they_pay_and_refused_in_words_elsewhere(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(able, "refusal", lambda config: None)
    made = plan_for(tiny_model, PROFILES["fast"])
    assert (made.t3.way, made.t3.dtype, made.refusals) == ("int8", "int8", [])
    assert plan_for(tiny_model, PROFILES["balanced"]).t3.dtype == "float32"
    monkeypatch.setattr(able, "refusal", lambda config: "products in int8 are no faster")
    monkeypatch.setattr(able, "exact_refusal", lambda config: None)
    made = plan_for(tiny_model, PROFILES["fast"])
    assert (made.t3.way, made.t3.dtype) == ("onnx", "float32")
    assert made.refusals == ["t3: no int8: products in int8 are no faster"]


def test_machine_code_is_preferred_where_it_can_be_and_missed_without_a_warning(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(able, "refusal", lambda config: None)
    monkeypatch.setattr(native_able, "refusal", lambda config, home: None)
    made = plan_for(tiny_model, PROFILES["fast"])
    assert (made.t3.way, made.t3.dtype) == ("native", "int8")
    assert plan_for(tiny_model, profile_named("fast+draft=lookup")).t3.way not in ("native", "int8")
    monkeypatch.setattr(native_able, "refusal", lambda config, home: "llvmlite is not installed")
    made = plan_for(tiny_model, PROFILES["fast"])
    assert (made.t3.way, made.t3.foregone) == ("int8", ("no native: llvmlite is not installed",))
    assert made.refusals == []


def test_what_nobody_was_promised_is_told_in_the_plan_and_not_in_a_warning(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(able, "exact_refusal", lambda config: "onnxruntime is not installed")
    made = plan_for(tiny_model, PROFILES["balanced"])
    assert made.t3.way == "plain"
    assert made.t3.foregone == ("no onnx: onnxruntime is not installed",)
    assert made.refusals == []


@pytest.mark.parametrize(
    ("switch", "dtype"),
    [("cache=int8", "auto"), ("keep=50", "auto"), ("draft=exit:1", "auto"), ("slots=2", "bfloat16")],
)
def test_what_needs_t3_in_torch_has_it_in_torch(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch, switch: str, dtype: str
) -> None:
    monkeypatch.setattr(able, "exact_refusal", lambda config: None)
    profile = profile_named(f"balanced+{switch}")
    assert plan_for(replace(tiny_model, dtype=dtype), profile).t3.way == "plain"
    assert plan_for(tiny_model, profile_named("balanced+slots=2")).t3.way == "onnx"
    monkeypatch.setattr(able, "refusal", lambda config: None)
    assert plan_for(tiny_model, profile_named("fast+slots=2")).t3.way == "int8"
    assert plan_for(tiny_model, profile_named("fast+draft=lookup")).t3.way == "onnx"
    if dtype == "auto":
        assert plan_for(tiny_model, profile_named(f"fast+{switch}")).t3.way == "plain"
