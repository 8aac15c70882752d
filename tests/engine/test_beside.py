"""Rendering beside T3: the same sound, sooner; and what fails there ends that request alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from nightingale.engine import load
from nightingale.engine.beside import BesideStudio, cores_to_spare
from nightingale.engine.load import Model
from nightingale.engine.studio import PlainStudio
from nightingale.engine.tts import TTS
from nightingale.errors import EngineFault

TEXTS = ["Hello there, everyone.", "Another one.", "And a third, which is somewhat longer."]


@pytest.fixture
def beside(noise_model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[TTS]:
    monkeypatch.setattr(load, "cores_to_spare", lambda: True)
    with TTS.over(noise_model, "balanced") as tts:
        assert isinstance(tts._worker.studio, BesideStudio)
        yield tts


def test_the_sound_is_the_plain_ones(
    beside: TTS, noise_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "cores_to_spare", lambda: False)
    with TTS.over(noise_model, "balanced") as plain:
        assert isinstance(plain._worker.studio, PlainStudio)
        for seed, text in enumerate(TEXTS):
            ours, theirs = (tts.say(text, seed=seed).samples for tts in (beside, plain))
            assert np.array_equal(ours, theirs)


def test_many_at_once_get_what_each_would_get_alone_in_length(beside: TTS) -> None:
    together = beside.say_many(TEXTS, seed=1)
    alone = [beside.say(text, seed=1) for text in TEXTS]
    assert [len(a.samples) for a in together] == [len(a.samples) for a in alone]


def test_what_fails_in_the_other_thread_ends_that_request_alone(
    beside: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, failed = PlainStudio._render, []

    def once(self: PlainStudio, block: object) -> object:
        if not failed:
            failed.append(block)
            raise RuntimeError("no sound")
        return render(self, block)  # type: ignore[arg-type]

    monkeypatch.setattr(PlainStudio, "_render", once)
    with pytest.raises(EngineFault, match="no sound"):
        beside.say(TEXTS[0], seed=1)
    assert len(beside.say(TEXTS[0], seed=1).samples)


def test_a_core_is_to_spare_where_torch_uses_fewer_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert cores_to_spare()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not cores_to_spare()
