"""A draft head learns its target's next hidden state, and the target is not changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lab.train.test_draft_model import OPTIONS, _single_precision, deep  # noqa: F401, a fixture
from lab.train.test_token_bank import make_bank
from safetensors.torch import load_file, save_file

from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab.train.draft_head import RECIPE, DraftHeadTraining, train_draft_head
from nightingale_lab.train.loop import read_log
from nightingale_lab.train.seeding import seeded


def test_training_reduces_the_divergence_and_leaves_the_target_unchanged() -> None:
    with seeded(0):
        target = T3(deep(2))
        before = {name: value.clone() for name, value in target.state_dict().items()}
        training = DraftHeadTraining(target, make_bank(clips=24), deep(2), RECIPE, **OPTIONS)
        (_, bucket), *_ = training.buckets.items()
        pick = torch.arange(4) % len(bucket.ids)

        def divergence() -> float:
            with seeded(1):
                return training.loss(bucket, pick, corruption=0.0, smoothing=0.0)[0].item()

        first = divergence()
        training.optimizer.lr.fill_(1e-2)
        for _ in range(30):
            training.optimizer.step(training.loss(bucket, pick, corruption=0.0, smoothing=0.0)[0])
        assert divergence() < 0.5 * first
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_only_positions_of_speech_tokens_count() -> None:
    """The loss ignores text and padding."""
    with seeded(0):
        training = DraftHeadTraining(T3(deep(2)), make_bank(clips=24), deep(2), RECIPE, **OPTIONS)
        (_, bucket), *_ = training.buckets.items()
        _, counts = training.batch(bucket, torch.arange(2), corruption=0.0)
        assert counts.sum() == sum(int(bucket.count[i] - bucket.text_count[i] - 1) for i in range(2))
        assert not counts[0, : int(bucket.text_count[0]) + 1].any()


def test_the_stage_writes_a_draft_head_and_its_log(tmp_path: Path) -> None:
    with seeded(0):
        target = tmp_path / "t3.safetensors"
        save_file(T3(deep(2)).state_dict(), target)
        train_draft_head(make_bank(clips=24), tmp_path, deep(2), target=target, budget_s=0.01, **OPTIONS)
    weights = load_file(tmp_path / "draft_head.safetensors")
    net = DraftHead.shaped_like(weights)
    net.load_state_dict(weights)
    assert net.width == deep(2).backbone.width
    assert read_log(tmp_path / "draft_head.jsonl")[-1]["step"] > 0


@pytest.mark.parametrize(("blocks", "inner"), [(1, 24), (2, 40)])
def test_the_shape_of_a_draft_head_follows_from_its_weights(blocks: int, inner: int) -> None:
    made = DraftHead(16, blocks=blocks, inner=inner)
    again = DraftHead.shaped_like(made.state_dict())
    assert {k: v.shape for k, v in made.state_dict().items()} == {
        k: v.shape for k, v in again.state_dict().items()
    }
