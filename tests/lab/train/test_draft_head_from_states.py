"""A draft head learns from captured hidden states, and is validated on held-out utterances."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nightingale.errors import ConfigError
from nightingale.models.chatterbox.t3.config import SPEECH_VOCAB_KEY, TAPS
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale_lab.train import loop
from nightingale_lab.train.draft_head_from_states import HiddenStateDataset, train_from_hidden_states
from nightingale_lab.train.loop import read_log

CPU = torch.device("cpu")
VOCAB, WIDTH, UTTERANCES, TOKENS = 8, 16, 40, 20


def hidden_state_file(path: Path, *, rows: int = 1, seed: int = 0) -> Path:
    """Write hidden states that depend on the token alone."""
    rng = torch.Generator().manual_seed(seed)
    embedding, turn, head = (torch.randn(n, WIDTH, generator=rng) for n in (VOCAB, WIDTH, VOCAB))
    tokens = torch.randint(VOCAB, (UTTERANCES, TOKENS), generator=rng)
    states = torch.randn(UTTERANCES, TOKENS, (1 + TAPS) * WIDTH, generator=rng)
    states[:, 1:, :WIDTH] = torch.tanh(embedding[tokens[:, :-1]] @ turn)
    save_file(
        {
            "hidden_states": states.flatten(0, 1).half(),
            "tokens": tokens.flatten().int(),
            "counts": torch.full((UTTERANCES,), TOKENS, dtype=torch.int32),
            "rows": torch.tensor([rows], dtype=torch.int32),
            "embedding": embedding,
            "head.weight": head,
        },
        path,
    )
    return path


def test_training_learns_the_next_state_and_keeps_the_best_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hidden_state_file(tmp_path / "states.safetensors")
    # Seconds of processor time, so that a busy machine trains as long.
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=time.process_time))
    train_from_hidden_states([path], tmp_path, budget_s=8.0, device=CPU)
    dataset, weights = HiddenStateDataset.load([path], CPU), load_file(tmp_path / "draft_head.safetensors")
    head = DraftHead.shaped_like(weights).float()
    head.load_state_dict(weights)
    with safe_open(tmp_path / "draft_head.safetensors", framework="pt") as file:
        assert file.metadata() == {SPEECH_VOCAB_KEY: str(VOCAB)}
    with torch.no_grad():
        learned, accuracy = dataset.loss(head, dataset.validation)
        untrained, _ = dataset.loss(DraftHead(WIDTH), dataset.validation)
    assert learned < 0.3 * untrained
    assert accuracy > 0.8
    last = read_log(tmp_path / "draft_head.jsonl")[-1]
    assert last["validation_loss"] < 0.3 * float(untrained)


def test_no_position_reaches_into_the_next_utterance(tmp_path: Path) -> None:
    dataset = HiddenStateDataset.load([hidden_state_file(tmp_path / "t.safetensors")], CPU)
    positions = torch.cat([dataset.training, dataset.validation])
    assert int((positions % TOKENS).max()) == TOKENS - 4
    assert not set(dataset.training.tolist()) & set(dataset.validation.tolist())
    assert len(dataset.validation) == UTTERANCES // 10 * (TOKENS - 3)


def test_both_rows_of_a_guided_utterance_are_held_out(tmp_path: Path) -> None:
    """They have the same tokens: a head that trains on one row must not be validated on the other."""
    dataset = HiddenStateDataset.load([hidden_state_file(tmp_path / "t.safetensors", rows=2)], CPU)
    assert {position // TOKENS for position in dataset.validation.tolist()} == {18, 19, 38, 39}
    assert not {18, 19, 38, 39} & {position // TOKENS for position in dataset.training.tolist()}


def test_files_of_one_model_are_joined_and_those_of_two_are_refused(tmp_path: Path) -> None:
    path, other = (hidden_state_file(tmp_path / f"{seed}.safetensors", seed=seed) for seed in (0, 1))
    one, two = HiddenStateDataset.load([path], CPU), HiddenStateDataset.load([path, path], CPU)
    assert torch.equal(two.states, torch.cat([one.states, one.states]))
    assert len(two.validation) == 2 * len(one.validation)
    with pytest.raises(ConfigError, match="hidden states of two models"):
        HiddenStateDataset.load([path, other], CPU)
