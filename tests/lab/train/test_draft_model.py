"""A draft model learns its target's probabilities, and starts from some of its layers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.train.test_token_bank import make_bank
from safetensors.torch import load_file, save_file
from tiny_wren import TINY

from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab.train.draft_model import RECIPE, DraftModelTraining, prune_layers, train_draft_model
from nightingale_lab.train.loop import read_log
from nightingale_lab.train.seeding import seeded

OPTIONS: dict[str, Any] = {"marks": frozenset(), "device": torch.device("cpu"), "eager": True, "seed": 0}


@pytest.fixture(autouse=True)
def _single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages compute in bfloat16; a CPU without it takes minutes for a step."""
    monkeypatch.setattr(torch, "autocast", lambda *_: nullcontext())


def deep(layers: int) -> T3Config:
    return replace(TINY.t3, backbone=replace(TINY.t3.backbone, layers=layers))


def test_layers_are_taken_evenly_and_the_last_is_among_them() -> None:
    target = T3(deep(6))
    weights = prune_layers(target, 2)
    assert torch.equal(weights["tfmr.layers.0.mlp.up_proj.weight"], target.tfmr.layers[2].mlp.up_proj.weight)  # type: ignore[union-attr,index]
    assert torch.equal(weights["tfmr.layers.1.mlp.up_proj.weight"], target.tfmr.layers[5].mlp.up_proj.weight)  # type: ignore[union-attr,index]
    T3(deep(2)).load_state_dict(weights)


def test_a_draft_with_all_layers_has_no_loss() -> None:
    with seeded(0):
        target = T3(deep(2))
        same, less = (
            DraftModelTraining(target, make_bank(clips=24), deep(n), RECIPE, **OPTIONS) for n in (2, 1)
        )
        same.dropout_on = less.dropout_on = False
        (size, bucket), *_ = same.buckets.items()
        pick = torch.arange(3)
        exact = same.loss(bucket, pick, corruption=0.0, smoothing=0.0)[0]
        rough = less.loss(less.buckets[size], pick, corruption=0.0, smoothing=0.0)[0]
    assert exact.item() == pytest.approx(0.0, abs=1e-6)
    assert rough.item() > 1e-5


def test_the_stage_writes_a_draft_and_its_log(tmp_path: Path) -> None:
    with seeded(0):
        save_file(T3(deep(2)).state_dict(), tmp_path / "t3.safetensors")
        target = tmp_path / "t3.safetensors"
        train_draft_model(
            make_bank(clips=24), tmp_path, deep(2), target=target, layers=1, budget_s=0.01, **OPTIONS
        )
    T3(deep(1)).load_state_dict(load_file(tmp_path / "draft.safetensors"))
    assert read_log(tmp_path / "draft.jsonl")[-1]["step"] > 0
