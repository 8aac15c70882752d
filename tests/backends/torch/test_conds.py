"""Upstream's conds.pt, written by PyTorch and read without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from voices.test_voice import parts

from nightingale import Voice, VoiceError


def conds() -> dict[str, Any]:
    p = {key: torch.tensor(value) if hasattr(value, "dtype") else value for key, value in parts().items()}
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


def test_upstream_conds_become_the_same_voice(tmp_path: Path) -> None:
    torch.save(conds(), tmp_path / "conds.pt")
    voice = Voice.from_conds_pt(tmp_path / "conds.pt", family="chatterbox")
    assert voice == Voice.checked(**parts())
    assert voice.flow_prompt_ids.dtype == "int64"


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
