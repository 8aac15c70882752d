"""Mel from ids as they arrive: how many frames, when, and which. Equality is tests/equivalence's subject."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_torch import s3gen_of

from nightingale.backends.torch.mel_stream import MelStream, prepare_prompt, render_mel
from nightingale.engine.load import Model
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.voices.voice import Voice

IDS = [5, 4000, 6560, 17, 90, 2, 3111, 8, 777, 1]


@pytest.fixture(scope="module")
def flow(tiny_model: Model) -> Flow:
    return s3gen_of(tiny_model)[0]


@pytest.fixture(scope="module")
def voice(tiny_model: Model) -> Voice:
    assert tiny_model.default_voice is not None
    return tiny_model.default_voice


def frames(stream: MelStream, pushes: list[int]) -> list[int]:
    """Return the number of frames that each push gives; the last is final."""
    ids, given = iter(IDS), []
    for number, count in enumerate(pushes):
        mel = stream.push([next(ids) for _ in range(count)], final=number == len(pushes) - 1)
        assert mel.shape[0] == 80
        given.append(mel.shape[1])
    return given


def test_streaming_holds_back_three_ids_until_the_end(flow: Flow, voice: Voice) -> None:
    prompt = prepare_prompt(flow, voice)

    def given(pushes: list[int]) -> list[int]:
        return frames(MelStream(flow, voice, seed=1, streaming=True, prompt=prompt), pushes)

    assert given([10]) == [20]
    assert given([4, 0, 6]) == [2, 0, 18]
    assert given([1, 1, 1, 1, 1, 0]) == [0, 0, 0, 2, 2, 6]
    assert given([3, 0]) == [0, 6]
    assert given([0]) == [0]


@pytest.mark.parametrize("pushes", [[10], [3, 7], [10, 0], [1] * 10])
def test_whole_is_bit_equal_to_one_rendering_and_comes_at_the_end(
    flow: Flow, voice: Voice, pushes: list[int]
) -> None:
    stream, ids = MelStream(flow, voice, seed=3, streaming=False), iter(IDS)
    for count in pushes[:-1]:
        assert stream.push([next(ids) for _ in range(count)], final=False).shape == (80, 0)
    mel = stream.push(list(ids), final=True)
    assert torch.equal(mel, render_mel(flow, IDS, voice, seed=3))


def test_whole_of_nothing_is_nothing(flow: Flow, voice: Voice) -> None:
    assert MelStream(flow, voice, seed=3, streaming=False).push([], final=True).shape == (80, 0)


def test_the_seed_changes_the_mel_and_a_prepared_prompt_does_not(flow: Flow, voice: Voice) -> None:
    prompt = prepare_prompt(flow, voice)
    mel = MelStream(flow, voice, seed=3, streaming=True).push(IDS, final=True)
    same = MelStream(flow, voice, seed=3, streaming=True, prompt=prompt).push(IDS, final=True)
    other = MelStream(flow, voice, seed=4, streaming=True, prompt=prompt).push(IDS, final=True)
    assert torch.equal(mel, same)
    assert not torch.allclose(mel, other, atol=1e-2)


def test_a_prompt_of_another_voice_is_refused(flow: Flow, voice: Voice) -> None:
    prompt = prepare_prompt(flow, replace(voice, content_hash="another"))
    with pytest.raises(AssertionError, match="another voice"):
        MelStream(flow, voice, seed=3, streaming=True, prompt=prompt)


def test_an_utterance_ends_once(flow: Flow, voice: Voice) -> None:
    stream = MelStream(flow, voice, seed=3, streaming=True)
    stream.push(IDS, final=True)
    with pytest.raises(AssertionError, match="ended"):
        stream.push(IDS, final=True)
