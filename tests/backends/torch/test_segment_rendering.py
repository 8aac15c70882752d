"""Streaming by segments with real networks: the audio of `balanced` is that of `exact` for the same tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nightingale import TTS
from nightingale.backends.profiles import BALANCED, Preference, Profile
from nightingale.decoding.philox import nth_seed
from nightingale.engine.load import Model
from nightingale.types import Samples

SENTENCES = ["The first sentence comes right away.", "The second one follows it a little later."]
SEED = 5
REFERENCE = (Preference("torch", "float32"),)
BY_SEGMENTS = replace(BALANCED, stream="segment", decoder=REFERENCE)


@pytest.fixture
def short(tiny_model: Model) -> Model:
    return tiny_model.with_defaults(max_new_tokens=40)


def spoken(model: Model, profile: str | Profile, text: str, seed: int = SEED) -> Samples:
    with TTS.over(model, profile) as tts:
        return tts.say(text, seed=seed).samples


def test_a_sentence_has_the_bits_of_exact(short: Model) -> None:
    exact = spoken(short, "exact", SENTENCES[0])
    assert np.abs(exact).max() > 0
    assert np.array_equal(spoken(short, BY_SEGMENTS, SENTENCES[0]), exact)
    assert not np.array_equal(spoken(short, replace(BY_SEGMENTS, stream="block"), SENTENCES[0]), exact)


def test_each_segment_of_a_text_has_the_bits_of_exact(short: Model) -> None:
    text = " ".join(SENTENCES)
    segments = [spoken(short, "exact", one, nth_seed(SEED, n)) for n, one in enumerate(SENTENCES)]
    pause = np.zeros(2880, np.float32)
    assert np.array_equal(spoken(short, BY_SEGMENTS, text), np.concatenate([segments[0], pause, segments[1]]))
    assert len(spoken(short, "exact", text)) == 40 * 960, "exact speaks it as one segment"


def test_a_decoder_of_another_backend_changes_no_float32_token(short: Model) -> None:
    """Whole segments have the same bits if another decoder finds the same tokens."""
    exact = spoken(short, "exact", SENTENCES[0])
    decoder = (Preference("onnx", "float32"),)
    assert np.array_equal(spoken(short, replace(BY_SEGMENTS, decoder=decoder), SENTENCES[0]), exact)


def test_fewer_flow_steps_give_other_audio_of_the_same_length(short: Model) -> None:
    two, one = (spoken(short, replace(BY_SEGMENTS, flow_steps=n), SENTENCES[0]) for n in (2, 1))
    assert np.array_equal(two, spoken(short, "exact", SENTENCES[0])), "upstream's number"
    assert one.shape == two.shape
    assert not np.array_equal(one, two)
