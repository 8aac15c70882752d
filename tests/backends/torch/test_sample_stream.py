"""Speech ids to mel to samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tiny_torch import s3gen_of

from nightingale import TTS
from nightingale.audio import crossfade
from nightingale.audio.crossfade import fade_in
from nightingale.backends.torch import mel_stream as acoustic
from nightingale.backends.torch.mel_stream import render_mel
from nightingale.backends.torch.sample_stream import harmonic_phase, render_samples
from nightingale.decoding.decoding import Decoding
from nightingale.engine.load import Model
from nightingale.models.defaults import SILENCE_TOKEN

IDS = [5, 4000, 6560, 17]


def speaks(monkeypatch: pytest.MonkeyPatch, ids: list[int]) -> list[list[int]]:
    """Let T3 say `ids`, each time anew; gives what the flow was asked to render."""
    rendered: list[list[int]] = []

    def render(flow: Any, ids: list[int], voice: Any, *, seed: int) -> torch.Tensor:
        rendered.append(ids)
        return render_mel(flow, ids, voice, seed=seed)

    def append(self: Decoding, token: int) -> None:
        self.appended += 1
        self.finished = self.appended == len(ids)

    monkeypatch.setattr(Decoding, "sample", lambda self, logits: ids[self.appended])
    monkeypatch.setattr(Decoding, "append", append)
    monkeypatch.setattr(acoustic, "render_mel", render)
    return rendered


@pytest.fixture
def tts_with(tiny_model: Model) -> Any:
    def make(defaults: dict[str, Any] | None = None) -> TTS:
        return TTS.over(tiny_model.with_defaults(**(defaults or {})), "exact")

    return make


def test_illegal_ids_never_reach_the_flow(tts_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = speaks(monkeypatch, [6562, 5, 6561, 6562, 7, 6562])
    audio = tts_with().say("Hello", seed=0)
    assert rendered == [[5, 7]]
    assert len(audio.samples) == 2 * 960
    assert audio.metrics.tokens == 2


def test_a_model_that_stops_at_once_says_nothing(tts_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = speaks(monkeypatch, [6562])
    for dropping in (False, True):
        audio = tts_with(defaults={"drop_last_token": dropping}).say("Hello", seed=0)
        assert audio.samples.shape == (0,)
        assert audio.samples.dtype == np.float32
    assert rendered == []


def test_turbos_tail_of_silence_is_rendered(tts_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = speaks(monkeypatch, [5, 6562])
    tts_with(defaults={"tail_silence_tokens": 3}).say("Hello", seed=0)
    assert rendered == [[5, 4299, 4299, 4299]]
    assert SILENCE_TOKEN == 4299


def test_two_frames_and_960_samples_per_token(tiny_model: Model) -> None:
    voice = tiny_model.default_voice
    assert voice is not None
    mel = render_mel(s3gen_of(tiny_model)[0], IDS, voice, seed=3)
    samples = render_samples(s3gen_of(tiny_model)[1], mel, seed=3)
    assert mel.shape == (80, 2 * len(IDS))
    assert samples.shape == (960 * len(IDS),)
    assert samples.dtype == np.float32
    assert np.abs(samples).max() <= 0.99


def test_the_voice_and_the_seed_change_the_mel(tiny_model: Model) -> None:
    from dataclasses import replace

    voice, flow = tiny_model.default_voice, s3gen_of(tiny_model)[0]
    assert voice is not None
    mel = render_mel(flow, IDS, voice, seed=3)
    assert torch.equal(mel, render_mel(flow, IDS, voice, seed=3))
    assert not torch.equal(mel, render_mel(flow, IDS, voice, seed=4))
    assert not torch.equal(
        mel, render_mel(flow, IDS, replace(voice, flow_speaker=-voice.flow_speaker), seed=3)
    )


def test_sound_begins_after_20_ms_and_is_whole_after_40(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    mel = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    ramp = fade_in()
    faded = render_samples(s3gen_of(tiny_model)[1], mel, seed=1)
    monkeypatch.setattr(crossfade, "fade_in", lambda: np.ones(960, np.float32))
    bare = render_samples(s3gen_of(tiny_model)[1], mel, seed=1)
    assert not faded[:480].any()
    assert bare[:480].any()
    assert np.array_equal(faded[960:], bare[960:])
    assert np.array_equal(faded[:960], bare[:960] * ramp)


def test_the_fundamental_starts_at_zero_and_its_overtones_anywhere() -> None:
    phase = harmonic_phase(1)
    assert phase.shape == (1, 9, 1)
    assert phase[0, 0, 0] == 0
    assert len(set(phase.flatten().tolist())) == 9
    assert phase.abs().max() <= math.pi
    assert not torch.equal(phase, harmonic_phase(2))
