"""Options after a profile's name, default profiles, and what a model makes of them."""

from __future__ import annotations

import pytest

from nightingale.backends.base import ModelInfo
from nightingale.backends.profiles import EXACT, PROFILES, profile_named, with_options
from nightingale.backends.selection import for_model
from nightingale.engine.load import default_profile
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.defaults import MODEL_DEFAULTS

OFFICIAL = ("english", "multilingual", "turbo", "nano")


def info(name: str) -> ModelInfo:
    return ModelInfo(name=name, preset=PRESETS[name], defaults=MODEL_DEFAULTS[name])


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_models_are_served_by_segments_by_default(name: str) -> None:
    profile = default_profile(name)
    assert (profile.name, profile.stream, profile.short_first_segment) == ("balanced", "segment", True)
    assert for_model(profile_named("balanced+stream=block"), info(name)).stream == "block"


def test_wren_is_served_by_blocks_by_default() -> None:
    assert (default_profile("wren").name, default_profile("wren").stream) == ("balanced", "block")


def test_exact_renders_whole_segments_that_are_filled_as_before() -> None:
    assert (EXACT.stream, EXACT.short_first_segment, EXACT.batched) == ("segment", False, False)
    for name in PRESETS:
        assert for_model(EXACT, info(name)).stream == "segment"


@pytest.mark.parametrize("name", [None, "default", "balanced"])
def test_default_names_the_models_profile(name: str | None) -> None:
    assert profile_named(name) is PROFILES["balanced"]
    assert profile_named("default", default="exact") is EXACT
    assert profile_named("default+slots=2", default="fast").name == "fast+slots=2"


def test_options_are_read_and_named() -> None:
    made = profile_named("balanced+stream=block+flow_steps=6+first_block_tokens=12")
    assert (made.stream, made.flow_steps, made.first_block_tokens) == ("block", 6, 12)
    assert (made.in_blocks, made.smallest_block_tokens) == (True, 12)
    assert profile_named("balanced").smallest_block_tokens == 8
    assert with_options("fast", {"stream": "block", "flow_steps": None}) == "fast+stream=block"
    assert with_options(None, {}) == "default"
    assert profile_named("exact+stream=segment").stream == "segment"


@pytest.mark.parametrize(
    ("name", "param", "allowed"),
    [
        ("balanced+stream=blocks", "stream", "segment, block"),
        ("balanced+stream", "stream", "segment, block"),
        ("exact+stream=block", "stream", "stream=segment"),
        ("balanced+flow_steps=0", "flow_steps", "1 to 50"),
        ("balanced+flow_steps=51", "flow_steps", "1 to 50"),
        ("balanced+flow_steps=2.5", "flow_steps", "1 to 50"),
        ("balanced+flow_steps=²", "flow_steps", "1 to 50"),
        ("balanced+first_block_tokens=4", "first_block_tokens", "5 to 32"),
        ("balanced+first_block_tokens=33", "first_block_tokens", "5 to 32"),
        ("balanced+decoder=int3", "decoder", "int4, float32, int8, float16"),
        ("balanced+renderer=int4", "renderer", "float32, int8, float16"),
        ("defaults", "profile", "default, exact, balanced, fast"),
    ],
)
def test_a_bad_option_is_refused_with_what_is_allowed(name: str, param: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        profile_named(name)
    error = caught.value
    assert (error.param, error.allowed) == (param, allowed)
    assert error.got
    assert error.fix


@pytest.mark.parametrize(
    ("name", "option", "param", "allowed"),
    [
        ("turbo", "flow_steps=11", "flow_steps", "1 to 10"),
        ("nano", "flow_steps=50", "flow_steps", "1 to 10"),
        ("wren", "flow_steps=3", "flow_steps", "2"),
        ("wren", "decoder=int4", "decoder", "decoder=int4 with turbo or nano"),
        ("multilingual", "decoder=int4", "decoder", "decoder=int4 with turbo or nano"),
        ("english", "first_block_tokens=8", "first_block_tokens", "first_block_tokens with stream=block"),
    ],
)
def test_an_option_that_a_model_does_not_have_is_refused(
    name: str, option: str, param: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        for_model(profile_named(f"balanced+{option}"), info(name))
    assert (caught.value.param, caught.value.allowed) == (param, allowed)
    assert option in str(caught.value)
    assert caught.value.fix


def test_each_kind_of_flow_takes_its_steps() -> None:
    for name, steps in (("english", 50), ("multilingual", 1), ("turbo", 4), ("nano", 1), ("wren", 2)):
        assert for_model(profile_named(f"balanced+flow_steps={steps}"), info(name)).flow_steps == steps
