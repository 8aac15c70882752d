"""A voice is a value: checked when made, equal by content, whole on disk."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nightingale.errors import OutputError, VoiceError
from nightingale.voices.voice import Voice


def parts(**changed: Any) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(7)
    return {
        "name": "anna",
        "family": "chatterbox",
        "speaker": torch.randn(256, generator=rng),
        "prompt_ids": torch.randint(0, 6561, (150,), generator=rng),
        "flow_prompt_ids": torch.randint(0, 6561, (5,), generator=rng),
        "flow_prompt_mel": torch.randn(10, 80, generator=rng),
        "flow_speaker": torch.randn(192, generator=rng),
        "provenance": "a test",
    } | changed


def conds() -> dict[str, Any]:
    p = parts()
    return {
        "t3": {
            "speaker_emb": p["speaker"][None],
            "cond_prompt_speech_tokens": p["prompt_ids"][None],
            "emotion_adv": torch.full((1, 1, 1), 0.5),
            "clap_emb": None,
            "cond_prompt_speech_emb": None,
        },
        "gen": {
            "prompt_token": p["flow_prompt_ids"][None].to(torch.int32),
            "prompt_token_len": torch.tensor([5]),
            "prompt_feat": p["flow_prompt_mel"][None],
            "prompt_feat_len": None,
            "embedding": p["flow_speaker"][None],
        },
    }


def test_a_saved_voice_comes_back_bit_for_bit(tmp_path: Path) -> None:
    voice = Voice.checked(**parts())
    voice.save(tmp_path / "anna.safetensors")
    again = Voice.load(tmp_path / "anna.safetensors")
    assert again == voice
    assert (again.name, again.family, again.provenance) == ("anna", "chatterbox", "a test")
    assert torch.equal(again.flow_prompt_mel, voice.flow_prompt_mel)
    assert torch.equal(again.prompt_ids, voice.prompt_ids)
    assert again.prompt_ids.dtype == torch.int64
    assert [p.name for p in tmp_path.iterdir()] == ["anna.safetensors"]


def test_a_voice_is_equal_by_content_and_not_by_name() -> None:
    voice = Voice.checked(**parts())
    assert Voice.checked(**parts(name="berta")) == voice
    assert hash(Voice.checked(**parts(name="berta"))) == hash(voice)
    assert Voice.checked(**parts(speaker=torch.zeros(256))) != voice
    assert Voice.checked(**parts(family="turbo")) != voice


def test_a_voice_keeps_its_own_copies_and_cannot_be_reassigned() -> None:
    given = parts()
    voice = Voice.checked(**given)
    given["speaker"].zero_()
    assert voice.speaker.abs().sum() > 0
    with pytest.raises(FrozenInstanceError):
        voice.name = "berta"  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong",
    [
        {"family": "opera"},
        {"speaker": torch.zeros(255)},
        {"speaker": torch.zeros(1, 256)},
        {"speaker": torch.full((256,), float("nan"))},
        {"speaker": torch.zeros(256, dtype=torch.int64)},
        {"prompt_ids": torch.zeros(0, dtype=torch.int64)},
        {"prompt_ids": torch.zeros(151, dtype=torch.int64)},
        {"prompt_ids": torch.tensor([6561])},
        {"prompt_ids": torch.tensor([-1])},
        {"prompt_ids": torch.tensor([1.0])},
        {"flow_prompt_ids": torch.zeros(4, dtype=torch.int64)},
        {"flow_prompt_mel": torch.zeros(10, 79)},
        {"flow_prompt_mel": torch.full((10, 80), float("inf"))},
        {"flow_speaker": torch.zeros(80)},
    ],
    ids=str,
)
def test_parts_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(VoiceError):
        Voice.checked(**parts(**wrong))


def test_turbo_takes_longer_prompts_and_wren_takes_any_width() -> None:
    assert (
        len(Voice.checked(**parts(family="turbo", prompt_ids=torch.ones(375, dtype=torch.int64))).prompt_ids)
        == 375
    )
    small = parts(
        family="wren",
        speaker=torch.zeros(16),
        flow_speaker=torch.zeros(8),
        flow_prompt_mel=torch.zeros(10, 20),
    )
    assert Voice.checked(**small).speaker.shape == (16,)


def test_upstream_conds_become_the_same_voice(tmp_path: Path) -> None:
    torch.save(conds(), tmp_path / "conds.pt")
    voice = Voice.from_conds_pt(tmp_path / "conds.pt", family="chatterbox")
    assert voice == Voice.checked(**parts())
    assert voice.flow_prompt_ids.dtype == torch.int64


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("evil-was-here"),))


@pytest.mark.parametrize("content", ["empty", "text", "truncated", "wrong layout", "short", "code"])
def test_a_conds_file_that_is_not_one_is_a_voice_error(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "conds.pt"
    torch.save(conds(), path)
    if content == "empty":
        path.write_bytes(b"")
    elif content == "text":
        path.write_bytes(b"hello, I am not a pickle")
    elif content == "truncated":
        path.write_bytes(path.read_bytes()[:2000])
    elif content == "wrong layout":
        torch.save([1, 2, 3], path)
    elif content == "short":
        torch.save(conds() | {"gen": {}}, path)
    else:
        torch.save({"t3": Evil()}, path)
    with pytest.raises(VoiceError):
        Voice.from_conds_pt(path, family="chatterbox")
    assert not Path("evil-was-here").exists()


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
        from safetensors.torch import save_file

        save_file({"x": torch.zeros(1)}, path)
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
        speaker=torch.ones(256),
        prompt_ids=torch.zeros(0, dtype=torch.int64),
        flow_prompt_ids=torch.zeros(0, dtype=torch.int64),
        flow_prompt_mel=torch.zeros(0, 80),
        flow_speaker=torch.ones(192),
    )


def test_a_wren_voice_needs_no_prompts(tmp_path: Path) -> None:
    bare("wren").save(tmp_path / "bare.safetensors")
    back = Voice.load(tmp_path / "bare.safetensors")
    assert back == bare("wren")
    assert back.flow_prompt_mel.shape == (0, 80)
    assert back.prompt_ids.dtype == torch.int64


@pytest.mark.parametrize("family", ["chatterbox", "turbo"])
def test_the_official_families_need_prompts(family: str) -> None:
    with pytest.raises(VoiceError, match="not empty"):
        bare(family)
