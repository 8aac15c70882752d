"""Our side of every parity stage, at tiny sizes, against outputs that were recorded from upstream's classes.

`make parity` runs the same functions at full size beside upstream. These tests need no upstream.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from parity import tiny

from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab.parity.stages import (
    cloning_stage,
    flow_stage,
    sampling_stage,
    t3_stage,
    vocoder_stage,
)
from nightingale_lab.parity.table import Rows, render
from nightingale_lab.random_models import random_voice
from nightingale_lab.upstream.families import FAMILIES


def check(rows: Rows) -> None:
    assert rows.rows
    assert all(row.passed for row in rows.rows), render(rows.rows)


@pytest.mark.parametrize(("kind", "model"), [("llama", "english"), ("gpt2", "turbo")])
def test_t3_stage(kind: str, model: str) -> None:
    net = tiny.fill(T3(tiny.TINY_LLAMA if kind == "llama" else tiny.TINY_GPT2))
    golden = tiny.goldens()
    ours = t3_stage.run_ours(net, tiny.t3_case(kind), defaults_of=model, guided=kind == "llama")
    ours = replace(ours, logits=ours.logits[:1, :, tiny.SEEN_LOGITS])
    theirs = t3_stage.GreedyRun(
        conditioning=golden[f"{kind}.conditioning"],
        prompt=ours.prompt,  # not recorded
        logits=golden[f"{kind}.prefill_scores"][None],
        ids=golden[f"{kind}.greedy_ids"],
    )
    rows = Rows(model)
    t3_stage.compare(rows, ours, theirs, distinct=tiny.GREEDY_TOKENS // 2)
    check(rows)


@pytest.mark.parametrize("model", ["english", "turbo"])
def test_sampler_stage(model: str) -> None:
    rows = Rows(model)
    for name, settings in sampling_stage.cases(model).items():
        ours = sampling_stage.run_ours(model, settings, *tiny.sampler_inputs(model))
        theirs = tiny.goldens()[f"sampler.{model}.{name}"]
        rows.same_filter(name, ours[:, tiny.SAMPLED_LOGITS], theirs, relative=1e-6)
        assert torch.isfinite(theirs).any()
        assert not torch.isfinite(theirs).all()
    check(rows)


@pytest.mark.parametrize("meanflow", [False, True])
def test_flow_stage(meanflow: bool) -> None:
    name, config = ("meanflow", tiny.TINY_MEANFLOW) if meanflow else ("flow", tiny.TINY_FLOW)
    tokens = tiny.FLOW_PROMPT_TOKENS + tiny.FLOW_TOKENS
    case = flow_stage.FlowCase(
        ids=tiny.ids(tokens, 4),
        prompt_mel=tiny.scatter((1, 2 * tiny.FLOW_PROMPT_TOKENS, 80), 5),
        speaker=tiny.scatter((1, 192), 6),
    )
    ours = flow_stage.run_ours(tiny.fill(Flow(config)), case, tiny.gaussian((1, 80, 2 * tokens), 3))
    rows = Rows(name)
    flow_stage.compare(
        rows, ours, tuple(tiny.goldens()[f"{name}.{key}"] for key in ("mu", "mel")), meanflow=meanflow
    )
    check(rows)


def test_vocoder_stage() -> None:
    net = tiny.fill_weight_normed(
        Hift(tiny.TINY_HIFT), plain=("source_downs.", "m_source.", "f0_predictor.classifier.")
    )
    mel, noise = tiny.gaussian((1, 80, tiny.FRAMES), 8), tiny.gaussian((1, 9, 480 * tiny.FRAMES), 9)
    phase = 3 * tiny.scatter((1, 9, 1), 10)
    phase[:, 0] = 0
    rows = Rows("hift")
    for name, ours in zip(
        ("f0_hz", "source", "samples"), vocoder_stage.run_ours(net, mel, phase, noise), strict=True
    ):
        rows.close(name, ours, tiny.goldens()[f"hift.{name}"], absolute=1e-4)
    check(rows)


def test_random_case_fits_every_family() -> None:
    for family in FAMILIES.values():
        case = t3_stage.random_case(family)
        assert case.voice.family == family.voice_family
        assert len(case.voice.prompt_ids) == (150 if family.guided else 375)


def test_clip_is_longer_than_the_flow_reference(tmp_path: Path) -> None:
    assert cloning_stage.write_clip(tmp_path).stat().st_size > 10 * 44_100 * 4


def test_noise_of_both_flows_has_the_same_shape() -> None:
    assert flow_stage.draw_noise(meanflow=True).shape == flow_stage.draw_noise(meanflow=False).shape
    assert not torch.equal(flow_stage.draw_noise(meanflow=True), flow_stage.draw_noise(meanflow=False))


def test_differences_are_reported_and_fail() -> None:
    rows = Rows("x")
    one, other = torch.ones(4), torch.tensor([1.0, 1.0, 1.0, 1.1])
    rows.close("same", one, one, relative=1e-6)
    rows.close("far", one, other, relative=1e-6)
    rows.close("not a number", one * float("nan"), one, absolute=1.0)
    rows.close("shape", one, one[:2], absolute=1.0)
    rows.same_ids("equal", torch.arange(4), torch.arange(4), distinct=4)
    rows.same_ids("other", torch.arange(4), torch.tensor([0, 1, 2, 4]), distinct=4)
    rows.same_ids("dull", torch.zeros(4), torch.zeros(4), distinct=4)
    masked = torch.tensor([1.0, -np.inf, 1.0, 1.0])
    rows.same_filter("same filter", masked, masked, relative=1e-6)
    rows.same_filter("other filter", one, masked, relative=1e-6)
    passed = [row.stage for row in rows.rows if row.passed]
    assert passed == ["same", "equal", "same filter"]
    assert render(rows.rows).count("MISSED") == 6


def test_random_voice_depends_on_its_seed() -> None:
    from nightingale.models.chatterbox.presets import PRESETS

    preset = PRESETS["nano"]
    assert random_voice(preset, seed=1) == random_voice(preset, seed=1)
    assert random_voice(preset, seed=1) != random_voice(preset, seed=2)
