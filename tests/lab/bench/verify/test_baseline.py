"""Stored baselines: those of the package agree with this machine, and differences are told apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_torch import t3_of

from nightingale.engine.tts import TTS
from nightingale_lab.bench.verify.baseline import (
    STORED,
    TINY_FAMILIES,
    Baseline,
    baseline_checks,
    compared,
    measure_baseline,
    read_baselines,
    stored_models,
    write_baselines,
)
from nightingale_lab.random_models import seeded_model

ONE = Baseline(
    model="wren",
    weights="w",
    plan="decoder onnx int8, renderer onnx int8, by block",
    machine={"arch": "aarch64", "cpu": "Neoverse-N1", "onnxruntime": "1.31.1"},
    tokens=96,
    tokens_sha256="a",
    samples=98_160,
    wav_bytes=196_364,
    wav_sha256="b",
)
ELSEWHERE = {"arch": "x86_64", "cpu": "Xeon", "onnxruntime": "1.31.1"}


def verdicts(now: Baseline, then: Baseline = ONE) -> dict[str, str]:
    return {check.name: check.verdict for check in compared(now, then)}


def test_the_same_baseline_passes() -> None:
    assert set(verdicts(ONE).values()) == {"pass"}


@pytest.mark.parametrize(
    ("field", "value", "caught"),
    [
        ("tokens", 97, "tokens"),
        ("tokens_sha256", "c", "tokens, other sha256"),
        ("samples", 98_159, "samples"),
        ("wav_bytes", 196_362, "WAV file"),
        ("wav_sha256", "c", "WAV file, other sha256"),
    ],
)
def test_each_number_can_fail(field: str, value: object, caught: str) -> None:
    found = verdicts(replace(ONE, **{field: value}))
    assert [name for name, verdict in found.items() if verdict == "fail"] == [caught]


def test_another_kind_of_machine_is_named_and_its_hashes_are_not_compared() -> None:
    other = replace(ONE, machine=ELSEWHERE, tokens=90, tokens_sha256="c", wav_sha256="d")
    checks = compared(other, ONE)
    assert {check.verdict for check in checks} == {"missing"}
    assert "arch aarch64 there, x86_64 here" in checks[1].detail
    assert "onnxruntime" not in checks[1].detail
    assert "90 here, 96 stored" in checks[0].detail


def test_tokens_of_float32_are_compared_on_every_machine() -> None:
    then = replace(ONE, plan="decoder torch float32, renderer onnx int8, by block")
    here = replace(then, machine=ELSEWHERE, tokens_sha256="c", wav_sha256="d")
    assert verdicts(here, then)["tokens, other sha256"] == "fail"
    assert verdicts(here, then)["WAV file, other sha256"] == "missing"
    assert not ONE.exact_tokens, "a renderer in float32 promises nothing"


def test_a_first_run_is_stored_and_the_next_one_is_compared(tmp_path: Path) -> None:
    own, stored = tmp_path / "own.jsonl", tmp_path / "none.jsonl"
    (first,) = baseline_checks(ONE, own, stored=stored)
    assert first.verdict == "missing"
    assert str(own) in first.detail
    changed = replace(ONE, wav_sha256="c")
    failed = [check.name for check in baseline_checks(changed, own, stored=stored) if check.verdict == "fail"]
    assert failed == ["WAV file, other sha256"]
    baseline_checks(changed, own, accept=True, stored=stored)
    assert {check.verdict for check in baseline_checks(changed, own, stored=stored)} == {"pass"}
    assert read_baselines(own) == [changed]


def test_another_kind_of_machine_stores_its_own_baseline(tmp_path: Path) -> None:
    own, stored = tmp_path / "own.jsonl", tmp_path / "stored.jsonl"
    write_baselines(stored, [ONE])
    here = replace(ONE, machine=ELSEWHERE, wav_sha256="c")
    assert {check.verdict for check in baseline_checks(here, own, stored=stored)} == {"missing"}
    assert {check.verdict for check in baseline_checks(here, own, stored=stored)} == {"pass"}
    own.write_text(own.read_text() + '{"model": "cut sho')
    assert read_baselines(own, stored) == [here, ONE]


def test_a_baseline_is_the_same_again_and_depends_on_the_weights(tmp_path: Path) -> None:
    def measured(seed: int) -> Baseline:
        model = seeded_model("turbo", tokens=8, seed=seed)
        with TTS.over(model, "exact", device="cpu") as tts:
            return measure_baseline(tts, model)

    first, again, other = measured(0), measured(0), measured(1)
    assert first == again
    assert (first.tokens, first.samples, first.wav_bytes) == (8, 7680, 44 + 2 * 7680)
    assert first.tokens_sha256 != other.tokens_sha256


def stored_cases() -> list[tuple[str, str]]:
    return [(model.name, profile) for model, profile in stored_models()]


@pytest.fixture
def _threads_of_a_stored_baseline() -> Iterator[None]:
    """Use as many threads as were used when baselines were stored, whatever the environment says."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads_of_a_stored_baseline")
@pytest.mark.parametrize(("name", "profile"), stored_cases())
def test_this_machine_makes_what_the_package_has_stored(name: str, profile: str, tmp_path: Path) -> None:
    model = next(model for model, spelled in stored_models() if (model.name, spelled) == (name, profile))
    with TTS.over(model, profile, device="cpu") as tts:
        now = measure_baseline(tts, model)
    known = [one for one in read_baselines(STORED) if (one.model, one.weights) == (now.model, now.weights)]
    assert known, "weights have changed: run `python -m nightingale_lab.bench.verify.baseline`"
    if not any(one.is_of(now) for one in known):
        pytest.skip(f"no baseline of this plan is stored: {now.plan}")
    checks = baseline_checks(now, tmp_path / "own.jsonl")
    assert not [check for check in checks if check.verdict == "fail"]
    if all(check.verdict == "missing" for check in checks):
        pytest.skip(checks[0].detail)


@pytest.mark.parametrize("name", TINY_FAMILIES)
def test_float32_tokens_do_not_depend_on_the_rounding_of_a_processor(name: str) -> None:
    """Sums of float32 in another order differ by less than the noise that is added here."""
    model = seeded_model(name, tokens=24)
    t3, rng = t3_of(model), torch.Generator().manual_seed(0)
    for weight in t3.parameters():
        weight.mul_(1 + 1e-5 * torch.randn(weight.shape, generator=rng))
    with TTS.over(model, "exact", device="cpu") as tts:
        now = measure_baseline(tts, model)
    stored = {one.tokens_sha256 for one in read_baselines(STORED) if one.is_of(now)}
    assert stored == {now.tokens_sha256}
