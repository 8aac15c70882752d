"""A voice is a value: checked when made, equal by content, whole on disk."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightingale.errors import OutputError, VoiceError
from nightingale.voices.voice import Voice


def parts(**changed: Any) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        "name": "anna",
        "family": "chatterbox",
        "speaker": rng.normal(size=(256,)).astype(np.float32),
        "prompt_ids": rng.integers(0, 6561, size=(150,)),
        "flow_prompt_ids": rng.integers(0, 6561, size=(5,)),
        "flow_prompt_mel": rng.normal(size=(10, 80)).astype(np.float32),
        "flow_speaker": rng.normal(size=(192,)).astype(np.float32),
        "provenance": "a test",
    } | changed


def test_a_saved_voice_comes_back_bit_for_bit(tmp_path: Path) -> None:
    voice = Voice.checked(**parts())
    voice.save(tmp_path / "anna.safetensors")
    again = Voice.load(tmp_path / "anna.safetensors")
    assert again == voice
    assert (again.name, again.family, again.provenance) == ("anna", "chatterbox", "a test")
    assert np.array_equal(again.flow_prompt_mel, voice.flow_prompt_mel)
    assert np.array_equal(again.prompt_ids, voice.prompt_ids)
    assert again.prompt_ids.dtype == np.int64
    assert [p.name for p in tmp_path.iterdir()] == ["anna.safetensors"]


def test_a_voice_is_equal_by_content_and_not_by_name() -> None:
    voice = Voice.checked(**parts())
    assert Voice.checked(**parts(name="berta")) == voice
    assert hash(Voice.checked(**parts(name="berta"))) == hash(voice)
    assert Voice.checked(**parts(speaker=np.zeros(256, np.float32))) != voice
    assert Voice.checked(**parts(family="turbo")) != voice


def test_a_voice_keeps_its_own_copies_and_cannot_be_reassigned() -> None:
    given = parts()
    voice = Voice.checked(**given)
    given["speaker"][:] = 0
    assert np.abs(voice.speaker).sum() > 0
    with pytest.raises(FrozenInstanceError):
        voice.name = "berta"  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong",
    [
        {"family": "opera"},
        {"speaker": np.zeros(255, np.float32)},
        {"speaker": np.zeros((1, 256), np.float32)},
        {"speaker": np.full((256,), float("nan"))},
        {"speaker": np.zeros(256, np.int64)},
        {"prompt_ids": np.zeros(0, np.int64)},
        {"prompt_ids": np.zeros(151, np.int64)},
        {"prompt_ids": np.array([6561])},
        {"prompt_ids": np.array([-1])},
        {"prompt_ids": np.array([1.0])},
        {"flow_prompt_ids": np.zeros(4, np.int64)},
        {"flow_prompt_mel": np.zeros((10, 79), np.float32)},
        {"flow_prompt_mel": np.full((10, 80), float("inf"))},
        {"flow_speaker": np.zeros(80, np.float32)},
    ],
    ids=str,
)
def test_parts_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(VoiceError):
        Voice.checked(**parts(**wrong))


def test_turbo_takes_longer_prompts_and_wren_takes_any_width() -> None:
    assert len(Voice.checked(**parts(family="turbo", prompt_ids=np.ones(375, np.int64))).prompt_ids) == 375
    small = parts(
        family="wren",
        speaker=np.zeros(16, np.float32),
        flow_speaker=np.zeros(8, np.float32),
        flow_prompt_mel=np.zeros((10, 20), np.float32),
    )
    assert Voice.checked(**small).speaker.shape == (16,)


@pytest.mark.parametrize(
    "content", ["missing", "empty", "text", "truncated", "flipped bit", "other safetensors"]
)
def test_a_voice_file_that_is_not_one_is_a_voice_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "anna.safetensors"
    Voice.checked(**parts()).save(path)
    data = bytearray(path.read_bytes())
    if content == "missing":
        path.unlink()
    elif content == "empty":
        path.write_bytes(b"")
    elif content == "text":
        path.write_bytes(b"hello, I am not a tensor")
    elif content == "truncated":
        path.write_bytes(data[:-100])
    elif content == "flipped bit":
        data[-10] ^= 1
        path.write_bytes(data)
    else:
        from safetensors.numpy import save_file

        save_file({"x": np.zeros(1, np.float32)}, path)
    with pytest.raises(VoiceError):
        Voice.load(path)


def test_a_voice_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        Voice.checked(**parts()).save(tmp_path / "no" / "such" / "folder" / "anna.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_renamed_voice_is_the_same_voice() -> None:
    voice = Voice.checked(**parts())
    assert replace(voice, name="berta") == voice


def bare(family: str) -> Voice:
    return Voice.checked(
        name="bare",
        family=family,
        speaker=np.ones(256, np.float32),
        prompt_ids=np.zeros(0, np.int64),
        flow_prompt_ids=np.zeros(0, np.int64),
        flow_prompt_mel=np.zeros((0, 80), np.float32),
        flow_speaker=np.ones(192, np.float32),
    )


def test_a_wren_voice_needs_no_prompts(tmp_path: Path) -> None:
    bare("wren").save(tmp_path / "bare.safetensors")
    back = Voice.load(tmp_path / "bare.safetensors")
    assert back == bare("wren")
    assert back.flow_prompt_mel.shape == (0, 80)
    assert back.prompt_ids.dtype == np.int64


@pytest.mark.parametrize("family", ["chatterbox", "turbo"])
def test_the_official_families_need_prompts(family: str) -> None:
    with pytest.raises(VoiceError, match="not empty"):
        bare(family)
