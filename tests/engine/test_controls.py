"""Request parameters: ranges, defaults of each model, and the request they make."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest

from nightingale.engine.load import Model
from nightingale.engine.requests.controls import Control, available_controls, build_request
from nightingale.errors import ConfigError
from nightingale.models.defaults import MODEL_DEFAULTS, ModelDefaults
from nightingale.request_options import CONTROLS, OPTIONS, SEED_LIMIT
from nightingale.types import Sampling
from nightingale.voices.voice import Voice

ENGLISH = MODEL_DEFAULTS["english"]


@pytest.fixture
def voice(noise_model: Model) -> Voice:
    assert noise_model.default_voice is not None
    return noise_model.default_voice


def test_every_sampling_parameter_is_an_option_of_its_type() -> None:
    assert set(CONTROLS) == {*(field.name for field in fields(Sampling)), "exaggeration", "speed"}
    assert {field.name: field.type for field in fields(Sampling)} == {
        field.name: OPTIONS[field.name].kind.__name__ for field in fields(Sampling)
    }


@pytest.mark.parametrize("defaults", MODEL_DEFAULTS.values(), ids=MODEL_DEFAULTS)
def test_a_model_offers_the_controls_it_does_not_ignore(defaults: ModelDefaults) -> None:
    controls = available_controls(defaults)
    assert set(controls) == set(CONTROLS) - defaults.ignored
    assert all(control.low <= control.default <= control.high for control in controls.values())
    assert controls["temperature"] == Control(low=0.0, high=5.0, default=defaults.sampling.temperature)
    assert controls["speed"] == Control(low=0.25, high=4.0, default=1.0)


def test_a_request_without_controls_has_the_defaults_of_the_model(voice: Voice) -> None:
    request = build_request(ENGLISH, voice, 7, dict.fromkeys(asdict(ENGLISH.sampling)))
    assert request.voice is voice
    assert (request.sampling, request.exaggeration) == (ENGLISH.sampling, ENGLISH.exaggeration)
    assert (request.seed, request.speed) == (7, 1.0)


def test_a_request_takes_the_controls_that_are_given(voice: Voice) -> None:
    controls = {"temperature": 0.1, "top_k": 5, "exaggeration": 2.0, "speed": np.float32(1.5), "min_p": None}
    request = build_request(ENGLISH, voice, None, controls)
    assert request.sampling == replace(ENGLISH.sampling, temperature=0.1, top_k=5)
    assert (request.exaggeration, request.speed, type(request.speed)) == (2.0, 1.5, float)
    assert 0 <= request.seed < SEED_LIMIT
    assert request.seed != build_request(ENGLISH, voice, None, {}).seed


@pytest.mark.parametrize(
    ("controls", "message"),
    [
        ({"temprature": None}, "unknown control 'temprature'.*temperature"),
        ({"min_p": 0.5}, "this model has no min_p"),
        ({"top_k": 2.5}, "top_k is out of range: got 2.5; allowed: an integer from 0 to 1000000"),
        ({"top_p": True}, "top_p is out of range: got True; allowed: a number from 0.0 to 1.0"),
    ],
)
def test_an_impossible_control_is_refused_by_name(
    controls: dict[str, Any], message: str, voice: Voice
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        build_request(MODEL_DEFAULTS["turbo"], voice, 1, controls)
    assert error.value.param == next(iter(controls))


def test_a_seed_out_of_range_is_refused(voice: Voice) -> None:
    with pytest.raises(ConfigError, match="seed is out of range"):
        build_request(ENGLISH, voice, SEED_LIMIT, {})
    assert build_request(ENGLISH, voice, SEED_LIMIT - 1, {}).seed == SEED_LIMIT - 1
