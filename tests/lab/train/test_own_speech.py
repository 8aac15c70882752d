"""A T3 speaks the lines of a bank, and what it says is a bank again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lab.train.test_draft import deep
from lab.train.test_token_bank import make_bank
from safetensors.torch import save_file

from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH
from nightingale.models.chatterbox.t3.model import T3
from nightingale_lab.train import own_speech
from nightingale_lab.train.own_speech import SHORTEST, speak_lines
from nightingale_lab.train.seeding import seeded

CPU = torch.device("cpu")


def test_every_line_is_spoken_in_its_own_words_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(scores: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
        """Any sound, and an end after some: a T3 of random weights would never come to one."""
        ends = torch.rand(len(scores), generator=draws) < 0.1
        return torch.where(ends, STOP_SPEECH, torch.randint(START_SPEECH, (len(scores),), generator=draws))

    monkeypatch.setattr(own_speech, "_draw", draw)
    monkeypatch.setattr(own_speech, "LONGEST", 32)
    bank = make_bank(clips=12)
    with seeded(0):
        save_file(T3(deep(1)).state_dict(), tmp_path / "t3.safetensors")
    given = {"target": tmp_path / "t3.safetensors", "budget_s": 0.0, "device": CPU, "rows": 4}
    spoken = speak_lines(bank, deep(1), **given)  # type: ignore[arg-type]
    assert spoken.clips > 0
    assert (spoken.tokens < START_SPEECH).all()
    assert np.diff(spoken.token_offsets).min() >= SHORTEST
    assert set(spoken.line) <= set(bank.line)
    for clip in range(spoken.clips):
        of = int(np.flatnonzero(bank.line == spoken.line[clip])[0])
        mine = spoken.text_ids[spoken.text_offsets[clip] : spoken.text_offsets[clip + 1]]
        assert mine.tolist() == bank.text_ids[bank.text_offsets[of] : bank.text_offsets[of + 1]].tolist()
    again = speak_lines(bank, deep(1), **given)  # type: ignore[arg-type]
    assert (again.tokens == spoken.tokens).all(), "a seed says the same"


def test_ids_far_less_likely_than_the_likeliest_are_never_drawn() -> None:
    scores = torch.tensor([[5.0, 5.0, 1.0], [0.0, 9.0, 0.0]]).repeat(200, 1)
    drawn = own_speech._draw(scores, torch.Generator().manual_seed(0)).view(200, 2)
    assert set(drawn[:, 0].tolist()) == {0, 1}
    assert set(drawn[:, 1].tolist()) == {1}


def test_groups_have_texts_of_one_length_and_hold_every_clip_once() -> None:
    bank = make_bank(clips=24)
    groups = list(own_speech._alike(bank, 5, np.random.default_rng(0)))
    assert sorted(clip for group in groups for clip in group) == list(range(bank.clips))
    lengths = np.diff(bank.text_offsets)
    assert all(len(set(lengths[group])) == 1 and len(group) <= 5 for group in groups)
