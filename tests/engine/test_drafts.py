"""What look-up guesses: what followed the same tokens before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from nightingale.backends.torch.drafts import Ask, LookupDraft, continued
from nightingale.decoding.decoding import Decoding, PromptText
from nightingale.engine.model import Model


@pytest.mark.parametrize(
    ("said", "count", "guessed"),
    [
        ([1, 2, 3, 9, 8, 1, 2, 3], 2, [9, 8]),
        ([1, 2, 9, 5, 1, 2, 7, 4, 1, 2], 1, [7]),  # the latest place
        ([4, 1, 2, 9, 3, 1, 2, 7, 4, 1, 2], 1, [9]),  # but rather the longer match
        ([6, 6, 6], 3, [6]),  # no further than what was said
        ([1, 2, 3, 4, 3], 2, []),  # one token alone says too little
        ([], 4, []),
    ],
    ids=str,
)
def test_look_up_goes_on_as_it_went_on_before(said: list[int], count: int, guessed: list[int]) -> None:
    assert continued(said, count) == guessed


def test_look_up_knows_the_voices_prompt(noise_model: Model) -> None:
    defaults, voice = noise_model.defaults, noise_model.default_voice
    assert voice is not None
    voice = replace(voice, prompt_ids=torch.tensor([50, 51, 52, 53]))
    given: dict[str, Any] = {"defaults": defaults, "sampling": defaults.sampling, "text_ids": 3}
    told = PromptText(text="", text_ids=[], voice=voice, exaggeration=0.5)
    decoding = Decoding(noise_model.networks.t3, **given, seed=0, told=told)
    decoding.history += [9, 50, 51]
    assert LookupDraft().guess([Ask(slot=0, decoding=decoding, count=2)]) == [[52, 53]]
