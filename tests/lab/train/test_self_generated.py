"""The speech tokens that a T3 generates for the lines of a bank are a bank themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lab.train.test_draft_model import deep
from lab.train.test_token_bank import make_bank
from safetensors.torch import save_file

from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab.train import self_generated
from nightingale_lab.train.seeding import seeded
from nightingale_lab.train.self_generated import MIN_TOKENS, generate_speech

CPU = torch.device("cpu")


def test_lines_keep_their_text_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return random tokens, and sometimes the stop token, which random weights would not generate."""
        ends = torch.rand(len(logits), generator=generator) < 0.1
        tokens = torch.randint(START_SPEECH, (len(logits),), generator=generator)
        return torch.where(ends, STOP_SPEECH, tokens)

    monkeypatch.setattr(self_generated, "_sample", sample)
    monkeypatch.setattr(self_generated, "MAX_TOKENS", 32)
    bank = make_bank(clips=12)
    with seeded(0):
        save_file(T3(deep(1)).state_dict(), tmp_path / "t3.safetensors")
    given = {"target": tmp_path / "t3.safetensors", "budget_s": 0.0, "device": CPU, "batch": 4}
    generated = generate_speech(bank, deep(1), **given)  # type: ignore[arg-type]
    assert generated.clips > 0
    assert (generated.tokens < START_SPEECH).all()
    assert np.diff(generated.token_offsets).min() >= MIN_TOKENS
    assert set(generated.line) <= set(bank.line)
    for clip in range(generated.clips):
        of = int(np.flatnonzero(bank.line == generated.line[clip])[0])
        mine = generated.text_ids[generated.text_offsets[clip] : generated.text_offsets[clip + 1]]
        assert mine.tolist() == bank.text_ids[bank.text_offsets[of] : bank.text_offsets[of + 1]].tolist()
    again = generate_speech(bank, deep(1), **given)  # type: ignore[arg-type]
    assert (again.tokens == generated.tokens).all(), "a seed gives the same tokens"


def test_ids_below_min_p_are_never_sampled() -> None:
    logits = torch.tensor([[5.0, 5.0, 1.0], [0.0, 9.0, 0.0]]).repeat(200, 1)
    drawn = self_generated._sample(logits, torch.Generator().manual_seed(0)).view(200, 2)
    assert set(drawn[:, 0].tolist()) == {0, 1}
    assert set(drawn[:, 1].tolist()) == {1}


def test_batches_have_texts_of_one_length_and_hold_every_clip_once() -> None:
    bank = make_bank(clips=24)
    groups = list(self_generated._batches(bank, 5, np.random.default_rng(0)))
    assert sorted(clip for group in groups for clip in group) == list(range(bank.clips))
    lengths = np.diff(bank.text_offsets)
    assert all(len(set(lengths[group])) == 1 and len(group) <= 5 for group in groups)
