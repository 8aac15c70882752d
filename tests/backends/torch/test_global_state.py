"""The engine neither reads nor moves the global generators of torch and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nightingale import TTS
from nightingale.engine.load import Model


@pytest.fixture
def brief(tiny_model: Model) -> TTS:
    return TTS.over(tiny_model.with_defaults(max_new_tokens=6), "exact")


def test_loading_and_speaking_leave_the_global_generators_alone(brief: TTS) -> None:
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    TTS("wren", profile="exact")
    brief.say("Hello", seed=1)
    brief.say("Hello")
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == numpy_before


def test_the_global_generator_does_not_reach_the_sound(brief: TTS) -> None:
    first = brief.say("Hello", seed=1)
    torch.rand(17)
    assert brief.say("Hello", seed=1).sha256 == first.sha256
