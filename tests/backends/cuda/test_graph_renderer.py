"""Rendered by graphs, many at once and beside T3: the sound of the plain studio, sample for sample."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from engine.test_draws import FAST, TEXTS, planned
from torch import Tensor

from nightingale import TTS
from nightingale.backends.cuda.flow import flow_noise
from nightingale.backends.cuda.random import key_of
from nightingale.backends.cuda.renderer import PendingSamples, BlockRenderer
from nightingale.backends.cuda.vocoder import source_noise
from nightingale.backends.torch import mel_stream as acoustic
from nightingale.backends.torch import sample_stream as vocode
from nightingale.engine.model import Model
from nightingale.engine.session import Timing
from nightingale.backends.torch.renderer import Block, CudaGraphRenderer, TorchRenderer
from nightingale.engine.rendering.utterance import Utterance
from nightingale.engine.worker import Worker
from nightingale.errors import EngineFault
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.voices.voice import Voice

SMALL = replace(FAST, first_block_tokens=5, largest_block_tokens=20)
BOUND = 1e-5
"""Of full scale. In double precision, because a vocoder of random weights makes much of a rounding."""


class FlowTape:
    """The graphs' noise, read as the plain stream reads its own."""

    def __init__(self, flow: Flow, seed: int, purpose: str) -> None:
        self._key, self._bands = torch.tensor([key_of(seed, purpose)]), flow.config.mel_bands

    def read(self, start: int, count: int) -> Tensor:
        return flow_noise(self._key, torch.tensor([start]), count, self._bands)[0].T

    def forget_before(self, row: int) -> None:
        """It remembers nothing."""


class SourceTape:
    def __init__(self, seed: int) -> None:
        self._key = torch.tensor([key_of(seed, "source")])

    def read(self, start: int, count: int) -> Tensor:
        first, last = start // 480, -(-(start + count) // 480)
        noise = source_noise(self._key, torch.tensor([first]), last - first)[0].T
        return noise[start - 480 * first :][:count]

    def forget_before(self, row: int) -> None:
        """It remembers nothing."""


@pytest.fixture
def _same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acoustic, "_tape", FlowTape)
    monkeypatch.setattr(vocode, "source_noise", SourceTape)


class SmallBlocks(TorchRenderer):
    """The plain studio, given blocks of the sizes that the graphs have."""

    def __init__(self, renderer: BlockRenderer, flow: Flow, hift: Hift) -> None:
        super().__init__(flow, hift, streaming=True)
        self._renderer = renderer

    def open(self, voice: Voice, *, seed: int) -> Any:
        rendering = super().open(voice, seed=seed)

        def cut(waiting: int, *, finished: bool, wanted: int) -> Any:
            mel = rendering.mel
            unrendered = mel._start + len(mel._ids) - mel._done
            stands: Any = SimpleNamespace(rendered=rendering.begun, unrendered=unrendered)
            return self._renderer.cut(stands, waiting, finished=finished, wanted=wanted)

        rendering.cut = cut  # type: ignore[method-assign]
        return rendering


@pytest.fixture(scope="module")
def double(tiny_model: Model) -> Model:
    speakers = tiny_model.networks
    flow, hift = copy.deepcopy(speakers.flow).double(), copy.deepcopy(speakers.hift).double()
    return replace(tiny_model, networks=replace(speakers, flow=flow, hift=hift))


def engine(model: Model, *, tokens: int = 45, **ways: str) -> TTS:
    model = model.with_defaults(max_new_tokens=tokens)
    plan = planned(model, SMALL, **ways)
    if model.networks.flow.encoder_proj.weight.dtype == torch.float64:
        plan = replace(plan, flow=replace(plan.flow, dtype="float64"))
    return TTS.over(model, SMALL, plan=plan)


def graphs(model: Model, **options: Any) -> TTS:
    tts = engine(model, flow="graphs", vocoder="graphs", **options)
    assert isinstance(tts._worker.renderer, CudaGraphRenderer)
    return tts


def plain(model: Model, renderer: Any) -> TTS:
    tts = engine(model)
    tts._worker.renderer = SmallBlocks(renderer, model.networks.flow, model.networks.hift)
    return tts


def heard(streams: list[Iterator[Any]]) -> list[np.ndarray]:
    return [np.concatenate([chunk.samples for chunk in stream]) for stream in streams]


def close(one: np.ndarray, other: np.ndarray) -> None:
    assert one.shape == other.shape
    assert np.abs(other).max() > 0.01, "silence proves nothing"
    np.testing.assert_allclose(one, other, rtol=0, atol=BOUND)


@pytest.mark.usefixtures("_same_noise")
def test_the_sound_is_the_plain_studios_alone_and_in_a_crowd(double: Model) -> None:
    with graphs(double) as fast:
        with plain(double, fast._worker.renderer._renderer) as slow:  # type: ignore[attr-defined]
            expected = [slow.say(text, seed=i).samples for i, text in enumerate(TEXTS)]
        alone = [fast.say(text, seed=i).samples for i, text in enumerate(TEXTS)]
        crowd = heard([fast.stream(text, seed=i) for i, text in enumerate(TEXTS)])
    for one, other in zip(alone, expected, strict=True):
        close(one, other)
    for one, other in zip(crowd, alone, strict=True):
        # The crowd's blocks are larger, and a bidirectional flow hears a block whole.
        assert one.shape == other.shape


def test_utterances_in_one_voice_are_rendered_together(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    launch = BlockRenderer.launch

    def counted(self: BlockRenderer, blocks: Any) -> Any:
        together.append(len(blocks))
        return launch(self, blocks)

    monkeypatch.setattr(BlockRenderer, "launch", counted)
    monkeypatch.setattr(PendingSamples, "ready", False)  # as on a device that has much to do
    with graphs(tiny_model) as tts:
        streams = [tts.stream("The same words.", seed=i) for i in range(4)]
        sounds = heard(streams)
    assert max(together) > 1
    assert [len(sound) for sound in sounds] == [45 * 960] * 4


@pytest.mark.parametrize("tokens", [1, 3, 5, 8, 9, 20, 21, 24, 41])
def test_any_number_of_tokens_is_heard_to_its_end(tiny_model: Model, tokens: int) -> None:
    with graphs(tiny_model, tokens=tokens) as tts:
        assert len(tts.say("Well.", seed=2).samples) == tokens * 960


def test_a_voice_with_hardly_a_prompt_is_rendered_plainly(tiny_model: Model) -> None:
    voice = tiny_model.default_voice
    assert voice is not None
    short = Voice.checked(
        name="short",
        family=voice.family,
        speaker=voice.speaker,
        prompt_ids=voice.prompt_ids,
        flow_prompt_ids=voice.flow_prompt_ids[:2],
        flow_prompt_mel=voice.flow_prompt_mel[:4],
        flow_speaker=voice.flow_speaker,
    )
    with graphs(tiny_model, tokens=9) as tts:
        mine, other = tts.stream("Hm.", seed=1, voice=short), tts.stream("Hm.", seed=1)
        assert [len(sound) for sound in heard([mine, other])] == [9 * 960] * 2


def test_who_leaves_while_being_rendered_disturbs_nobody(tiny_model: Model) -> None:
    with graphs(tiny_model) as tts:
        streams = [tts.stream(text, seed=i) for i, text in enumerate(TEXTS)]
        next(streams[1])
        streams[1].close()
        assert [len(sound) for sound in heard([streams[0], *streams[2:]])] == [45 * 960] * 3
    assert not tts._worker._launched


def test_a_block_that_fails_in_company_ends_its_own_request_only(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, bad = BlockRenderer.launch, key_of(2, "flow")

    def failing(self: BlockRenderer, blocks: Any) -> Any:
        if any(spoken.flow_key == bad for spoken, _, _ in blocks):
            raise RuntimeError("a fault was planted here")
        return launch(self, blocks)

    monkeypatch.setattr(BlockRenderer, "launch", failing)
    with graphs(tiny_model) as tts:
        streams = [tts.stream("The same words.", seed=i) for i in range(4)]
        with pytest.raises(EngineFault, match="planted"):
            list(streams[2])
        assert [len(sound) for sound in heard([streams[0], streams[1], streams[3]])] == [45 * 960] * 3


def test_everything_fast_at_once_says_the_same_each_time(tiny_model: Model) -> None:
    with engine(tiny_model, t3="graphs", flow="graphs", vocoder="graphs") as tts:
        one, other = (tts.say(TEXTS[3], seed=5) for _ in range(2))
    assert one.sha256 == other.sha256
    assert len(one.samples) == 45 * 960


def test_what_may_be_cut_next_is_asked_after_the_launch(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first block is small, the next of a crowd large. Between the two, 18 ids may wait: enough for
    another small one, too few for a large one."""
    has_room = Worker._has_room

    def late(self: Worker) -> bool:
        spoken = [job.utterance for job in self._jobs.values() if job.utterance is not None]
        waited = all(u._tokens or u.decoding.finished or len(u._new) >= 18 for u in spoken)
        return has_room(self) and waited

    monkeypatch.setattr(Worker, "_has_room", late)
    with graphs(tiny_model, tokens=60) as tts:
        sounds = heard([tts.stream("The same words.", seed=i) for i in range(4)])
    assert [len(sound) for sound in sounds] == [60 * 960] * 4


def test_the_second_block_is_short_because_nothing_is_in_store_yet(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    plain = Utterance.take_block

    def counted(utterance: Utterance, timing: Timing) -> Block:
        block = plain(utterance, timing)
        sizes.append(len(block.ids))
        return block

    monkeypatch.setattr(Utterance, "take_block", counted)
    defaults = replace(tiny_model.defaults, max_new_tokens=120, first_block_tokens=7, second_block_tokens=9)
    with TTS.over(replace(tiny_model, defaults=defaults), "balanced") as tts:
        tts.say("Hello.", seed=1)
        assert sizes[:4] == [7 + LOOKAHEAD_TOKENS, 9, 18, 36]
        assert sum(sizes) <= 120
        alone = sorted(2 * sizes)
        sizes.clear()
        tts.say_many(["Hello.", "Hello."], seed=1)
    assert sorted(sizes) == alone, "where blocks are rendered one by one, they are cut alike in company"
