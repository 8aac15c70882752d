"""Values of wrong types: each is refused with an error of the package, as docs/python.md promises."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nightingale
from nightingale import TTS, NightingaleError, Voice

NOT_TEXTS: tuple[Any, ...] = (None, 5, 2.5, True, b"Hello.", ["Hello."], {"text": "Hello."}, object())
NOT_VOICES: tuple[Any, ...] = (
    5, 2.5, True, b"", b"not audio", [], ["emma"], {}, object(), "", " ", "a\0b", "no/such/clip.wav", Path(),
    np.zeros(3), (np.zeros(3),), (24_000, np.zeros(30_000)), (np.zeros(30_000), "24000"), (["a"], 24_000),
    (np.full(30_000, np.nan), 24_000), (np.zeros((2, 2, 30_000)), 24_000), BytesIO(), StringIO("clip"),
)  # fmt: skip
REQUESTS: dict[str, tuple[Any, ...]] = {
    "language": (5, b"en", ["en"], True, object()),
    "seed": ("7", 1.5, True, b"1", [1]),
    "normalize": ("no", 1, None, []),
    "temperature": ("hot", True, b"1", [0.5], {}, 1j),
    "speed": ("fast", [1], object()),
}
OPTIONS: dict[str, tuple[Any, ...]] = {
    "model": (5, b"noise", ["noise"], "", True, object(), "a\0b"),
    "device": (None, 5, b"cpu", ["cpu"], "gpu9"),
    "dtype": (None, 5, ["float32"], "int3"),
    "profile": (5, b"exact", ["exact"], True, "nope"),
    "stream": (5, ["block"], "whole"),
    "flow_steps": ("6", 0, 2.5, [6]),
    "first_block_tokens": ("6", 0, [6]),
    "offline": ("no", None, 1),
    "max_chars": ("5", 0, None, 2.5, True),
    "max_streams": ("all", 0, None, 2.5, True),
    "quality": (5,),
}


def cases() -> dict[str, Callable[[TTS], object]]:
    """Return the wrong calls by a description of them."""
    found: dict[str, Callable[[TTS], object]] = {}
    for text in NOT_TEXTS:
        found[f"say({_shown(text)})"] = lambda tts, text=text: tts.say(text)
        found[f"stream({_shown(text)})"] = lambda tts, text=text: tts.stream(text)
        found[f"session().push({_shown(text)})"] = lambda tts, text=text: tts.session().push(text)
    for texts in (None, 5, "Hello.", b"Hello.", [None], [5], [b"Hello."], [["Hello."]]):
        found[f"say_many({_shown(texts)})"] = lambda tts, texts=texts: tts.say_many(texts)
    for voice in NOT_VOICES:
        found[f"voice={_shown(voice)}"] = lambda tts, voice=voice: tts.say("Hello.", voice=voice)
        found[f"voice({_shown(voice)})"] = lambda tts, voice=voice: tts.voice(voice)
    found["voice(None)"] = lambda tts: tts.voice(None)
    for name, values in REQUESTS.items():
        for value in values:
            found[f"say({name}={_shown(value)})"] = lambda tts, o={name: value}: tts.say("Hello.", **o)
    for name, values in OPTIONS.items():
        for value in values:
            found[f"TTS({name}={_shown(value)})"] = lambda _, o={name: value}: TTS(**{"model": "noise", **o})
    for path in (None, 5, b"a.wav", ["a.wav"], "a\0.wav"):
        found[f"save({_shown(path)})"] = lambda tts, path=path: tts.say("Hello.").save(path)
        found[f"Voice.load({_shown(path)})"] = lambda _, path=path: Voice.load(path)
    for audio in (None, b"audio", np.zeros(5)):
        found[f"nightingale.save(…, {_shown(audio)})"] = lambda _, a=audio: nightingale.save("a.wav", a)
    return found


def _shown(value: object) -> str:
    """Return a description that is the same in every run."""
    parts = value if isinstance(value, tuple) else (value,)
    shown = [f"array {part.shape}" if isinstance(part, np.ndarray) else ascii(part) for part in parts]
    return re.sub(r" at 0x\w+", "", ", ".join(shown))


CASES = cases()


@pytest.mark.parametrize("wrong", CASES)
def test_a_value_of_a_wrong_type_is_refused(
    wrong: str, brief: TTS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NightingaleError) as refusal:
        CASES[wrong](brief)
    assert refusal.value.got or refusal.value.allowed
    assert not list(tmp_path.iterdir())
