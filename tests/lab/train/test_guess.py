"""A guess learns what its target thinks next, and the target is not changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lab.train.test_draft import GIVEN, _single_precision, deep  # noqa: F401, a fixture
from lab.train.test_token_bank import make_bank
from safetensors.torch import load_file, save_file

from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab.train.guess import RECIPE, GuessTraining, train_guess
from nightingale_lab.train.loop import read_log
from nightingale_lab.train.seeding import seeded


def test_guesses_get_better_and_the_target_stays() -> None:
    with seeded(0):
        target = T3(deep(2))
        before = {name: value.clone() for name, value in target.state_dict().items()}
        training = GuessTraining(target, make_bank(clips=24), deep(2), RECIPE, **GIVEN)
        (_, bucket), *_ = training.buckets.items()
        pick = torch.arange(4) % len(bucket.ids)

        def distance() -> float:
            with seeded(1):
                return training.loss(bucket, pick, slip=0.0, smoothing=0.0)[0].item()

        first = distance()
        training.optimizer.lr.fill_(1e-2)
        for _ in range(30):
            training.optimizer.step(training.loss(bucket, pick, slip=0.0, smoothing=0.0)[0])
        assert distance() < 0.5 * first
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_places_where_nothing_was_said_do_not_count() -> None:
    """Text and padding may hold anything: the loss is that of the spoken places alone."""
    with seeded(0):
        training = GuessTraining(T3(deep(2)), make_bank(clips=24), deep(2), RECIPE, **GIVEN)
        (_, bucket), *_ = training.buckets.items()
        _, counts = training.shown(bucket, torch.arange(2), slip=0.0)
        assert counts.sum() == sum(int(bucket.count[i] - bucket.text_count[i] - 1) for i in range(2))
        assert not counts[0, : int(bucket.text_count[0]) + 1].any()


def test_the_stage_writes_a_guess_of_the_size_it_says_and_its_log(tmp_path: Path) -> None:
    with seeded(0):
        target = tmp_path / "t3.safetensors"
        save_file(T3(deep(2)).state_dict(), target)
        train_guess(make_bank(clips=24), tmp_path, deep(2), target=target, budget_s=0.01, **GIVEN)
    weights = load_file(tmp_path / "draft_head.safetensors")
    net = DraftHead.shaped_like(weights)
    net.load_state_dict(weights)
    assert net.width == deep(2).backbone.width
    assert read_log(tmp_path / "draft_head.jsonl")[-1]["step"] > 0


@pytest.mark.parametrize(("blocks", "inner"), [(1, 24), (2, 40)])
def test_a_guess_knows_its_shape_from_its_weights(blocks: int, inner: int) -> None:
    made = DraftHead(16, blocks=blocks, inner=inner)
    again = DraftHead.shaped_like(made.state_dict())
    assert {k: v.shape for k, v in made.state_dict().items()} == {
        k: v.shape for k, v in again.state_dict().items()
    }
