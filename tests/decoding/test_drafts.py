"""The lookup draft proposes what followed the same tokens before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.decoding.drafts import DraftRequest, LookupDraft, lookup
from nightingale.engine.load import Model


@pytest.mark.parametrize(
    ("said", "count", "proposed"),
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
def test_look_up_goes_on_as_it_went_on_before(said: list[int], count: int, proposed: list[int]) -> None:
    assert lookup(said, count) == proposed


def test_lookup_searches_the_voice_prompt(noise_model: Model) -> None:
    defaults, voice = noise_model.defaults, noise_model.default_voice
    assert voice is not None
    voice = replace(voice, prompt_ids=np.array([50, 51, 52, 53]))
    prompt = Prompt(text="", text_ids=[1, 2, 3], voice=voice, exaggeration=0.5, guided=False)
    decoding = Decoding(prompt, vocab=6563, defaults=defaults, sampling=defaults.sampling, seed=1)
    decoding.history += [9, 50, 51]
    assert LookupDraft().propose([DraftRequest(slot=0, decoding=decoding, count=2)]) == [[52, 53]]
