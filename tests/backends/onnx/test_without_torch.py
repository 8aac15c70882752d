"""Wren speaks and clones end to end in a process where PyTorch cannot be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

SPEAK = """
import json, sys
sys.modules["torch"] = None
import numpy as np
from nightingale import TTS

with TTS("wren", profile=sys.argv[1]) as tts:
    plan = [(choice.backend.name, choice.precision) for choice in tts.plan.choices]
    once, again = (tts.say("Good morning.", seed=1) for _ in range(2))
    once, again = once.samples, again.samples
    chunks = list(tts.stream("Good morning.", seed=1))
    cloned = len(tts.say("Hello.", voice=sys.argv[2], seed=1).samples) if sys.argv[2] else 0
print(json.dumps({
    "plan": plan,
    "seconds": len(once) / 24_000,
    "level": float(np.sqrt(np.square(once).mean())),
    "repeats": bool(np.array_equal(once, again)),
    "chunks": len(chunks),
    "cloned": cloned,
    "torch": [name for name in sys.modules if name.startswith("torch.")],
}))
"""


RENDERER = "int8"
"""The precision of wren's flow and vocoder in the default profile."""


def speak(profile: str, clip: str = "") -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", SPEAK, profile, clip], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_the_default_profile_needs_no_torch(tmp_path: Path) -> None:
    import soundfile
    from synthetic_clip import voice_like

    soundfile.write(tmp_path / "clip.wav", voice_like(6.0, 24_000), 24_000)
    answer = speak("balanced", str(tmp_path / "clip.wav"))
    assert answer["plan"] == [["onnx", "int8"], ["onnx", RENDERER]]
    assert 0.5 < float(str(answer["seconds"])) < 3
    assert float(str(answer["level"])) > 0.01
    assert answer["repeats"]
    assert int(str(answer["cloned"])) > 0
    assert answer["torch"] == []


def test_the_fast_profile_needs_no_torch() -> None:
    answer = speak("fast")
    decoder, renderer = answer["plan"]  # type: ignore[misc]
    assert decoder[0] == renderer[0] == "onnx"
    assert answer["torch"] == []
