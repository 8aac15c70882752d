"""Voices of upstream (`conds.pt`) are pickles, and must not run code."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from nightingale.errors import VoiceError
from nightingale.voices.voice import Voice


class Calls:
    """An object whose pickle calls a function when it is read."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._call


@pytest.mark.parametrize(
    "call",
    [
        Calls(os.mkdir, "code_ran"),
        Calls(eval, "__import__('os').mkdir('code_ran')"),
        Calls(getattr, dict, "fromkeys"),
        Calls(__import__, "os"),
    ],
)
def test_a_voice_of_upstream_cannot_run_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Calls
) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("conds.pt", "w") as archive:
        archive.writestr("conds/data.pkl", pickle.dumps({"t3": call, "gen": {}}))
    with pytest.raises(VoiceError, match="not allowed in a voice"):
        Voice.from_conds_pt(tmp_path / "conds.pt", family="chatterbox")
    assert [path.name for path in tmp_path.iterdir()] == ["conds.pt"]
