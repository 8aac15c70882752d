"""Runs of `nightingale book` with the model "noise", and what they wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
from typer.testing import CliRunner, Result

from nightingale import TTS, Voice
from nightingale.cli.commands import app
from nightingale.voices import library

DOCUMENTS = {
    "one": "<h1>One</h1><p>It was a calm morning at the old harbour. The keeper slept until noon.</p>",
    "two": "<h1>Two</h1>",
    "three": "<h1>Three</h1><p>“Come here at once,” she said to the boy. He came.</p><hr/><p>The night was long.</p>",
}


def make(*arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["book", *arguments, "-m", "noise", "--json"])
    assert result.exit_code == exit_code, result.output
    assert "Traceback" not in result.output
    return result


def facts(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(make(*arguments).stdout)
    return found


def report(name: str = "sea.m4b.sentences/report.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def decoded(path: str) -> tuple[np.ndarray[Any, Any], int]:
    """Return the samples of a file, and its rate."""
    with av.open(path) as container:
        frames = [frame.to_ndarray().mean(axis=0) for frame in container.decode(audio=0)]
        rate_hz = container.streams.audio[0].rate
    samples = np.concatenate(frames).astype(np.float64)
    return samples / (32768 if np.abs(samples).max() > 2 else 1), rate_hz


def add_voice(name: str, tts: TTS) -> Voice:
    own = tts.default_voice
    assert own is not None
    arrays = {
        key: getattr(own, key) for key in ("speaker", "prompt_ids", "flow_prompt_ids", "flow_prompt_mel")
    }
    voice = Voice.checked(name=name, family=own.family, flow_speaker=own.flow_speaker + len(name), **arrays)
    library.add(name, voice)
    return voice
