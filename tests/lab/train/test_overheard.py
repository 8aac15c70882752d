"""A guess learns from thoughts that follow from one another, and is judged on utterances it never saw."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from nightingale.models.chatterbox.t3.draft_head import TAPS, DraftHead
from nightingale_lab.train import loop
from nightingale_lab.train.loop import read_log
from nightingale_lab.train.overheard import Overheard, train_overheard

CPU = torch.device("cpu")
VOCAB, WIDTH, UTTERANCES, TOKENS = 8, 16, 40, 20


def overheard(path: Path) -> Path:
    """What T3 thinks next is a matter of the token alone."""
    rng = torch.Generator().manual_seed(0)
    embedding, turn, head = (torch.randn(n, WIDTH, generator=rng) for n in (VOCAB, WIDTH, VOCAB))
    tokens = torch.randint(VOCAB, (UTTERANCES, TOKENS), generator=rng)
    thoughts = torch.randn(UTTERANCES, TOKENS, (1 + TAPS) * WIDTH, generator=rng)
    thoughts[:, 1:, :WIDTH] = torch.tanh(embedding[tokens[:, :-1]] @ turn)
    save_file(
        {
            "thoughts": thoughts.flatten(0, 1).half(),
            "tokens": tokens.flatten().int(),
            "counts": torch.full((UTTERANCES,), TOKENS, dtype=torch.int32),
            "embedding": embedding,
            "head.weight": head,
        },
        path,
    )
    return path


def test_what_follows_is_learned_and_the_best_average_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = overheard(tmp_path / "thoughts.safetensors")
    # Seconds of processor time: a machine that is busy with something else learns as much.
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=time.process_time))
    train_overheard(path, tmp_path, budget_s=8.0, device=CPU)
    told, weights = Overheard.load(path, CPU), load_file(tmp_path / "draft_head.safetensors")
    head = DraftHead.shaped_like(weights).float()
    head.load_state_dict(weights)
    with torch.no_grad():
        learned, hit = told.distance(head, told.unseen)
        begun, _ = told.distance(DraftHead(WIDTH), told.unseen)
    assert learned < 0.3 * begun
    assert hit > 0.8
    last = read_log(tmp_path / "draft_head.jsonl")[-1]
    assert last["unseen_loss"] < 0.3 * float(begun)


def test_no_place_reaches_into_the_next_utterance(tmp_path: Path) -> None:
    told = Overheard.load(overheard(tmp_path / "t.safetensors"), CPU)
    places = torch.cat([told.taught, told.unseen])
    assert int((places % TOKENS).max()) == TOKENS - 4
    assert not set(told.taught.tolist()) & set(told.unseen.tolist())
    assert len(told.unseen) == UTTERANCES // 10 * (TOKENS - 3)
