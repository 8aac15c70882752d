"""Rendering by CUDA graphs, in batches and beside T3: the samples of the reference renderer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from backends.cuda.eager import FAST, TEXTS, eager_plan
from backends.cuda.test_flow_windows import reference
from tiny_torch import s3gen_of, with_networks

from nightingale import TTS
from nightingale.backends.base import Block
from nightingale.backends.cuda.flow.flow_steps import FlowSteps
from nightingale.backends.cuda.flow.flow_windows import FlowWindow, FlowWindows
from nightingale.backends.cuda.graph_renderer import CONTEXT_TOKENS, CudaGraphRenderer
from nightingale.backends.cuda.graphs import HostCopy
from nightingale.backends.cuda.random import int64_key, normal
from nightingale.backends.profiles import Profile
from nightingale.backends.torch import mel_stream, sample_stream
from nightingale.backends.torch.renderer import TorchRenderer
from nightingale.engine.load import Model
from nightingale.engine.rendering.utterance import BlockLimits, Utterance
from nightingale.engine.session import Timing
from nightingale.engine.snapshot import EngineSnapshot
from nightingale.engine.worker import Worker
from nightingale.errors import EngineFault
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.voices.voice import Voice

SMALL = replace(FAST, first_block_tokens=5, largest_block_tokens=20)
BOUND = 1e-5
"""Relative to full scale, in double precision: a vocoder of random weights amplifies rounding."""


@pytest.fixture
def _same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bit of the noise differs between numpy and torch, and random weights amplify it."""

    def noise(key: int, first_row: int, rows: int, width: int) -> np.ndarray:
        signed = torch.tensor([key]) if key < 2**63 else torch.tensor([key - 2**64])
        return normal(signed, torch.tensor([first_row]), rows, width)[0].T.numpy()

    monkeypatch.setattr(mel_stream, "normal", noise)
    monkeypatch.setattr(sample_stream, "normal", noise)


class WindowedRenderer(TorchRenderer):
    """The reference renderer, with mel by the flow's reference windows and samples by `SampleStream`."""

    def open(self, voice: Voice, *, seed: int) -> Any:
        stream = super().open(voice, seed=seed)
        stream.mel = WindowStream(self._flow, voice, seed=seed)  # type: ignore[assignment]
        stream.prefers_large_batches = True
        return stream


class WindowStream:
    """Render each block after the whole prompt and some tokens of context, one window at a time."""

    def __init__(self, flow: Flow, voice: Voice, *, seed: int) -> None:
        self._flow, self._voice, self._key = flow, voice, int64_key(seed, "flow")
        self._ids: list[int] = []
        self._rendered = 0

    def push(self, ids: list[int], *, final: bool) -> torch.Tensor:
        self._ids += ids
        start = max(0, self._rendered - CONTEXT_TOKENS)
        tokens = len(self._ids) - start - (0 if final else LOOKAHEAD_TOKENS)
        prompt = FlowWindows(FlowSteps(self._flow)).prompt(self._voice)
        window = FlowWindow(prompt=prompt, ids=self._ids[start:], tokens=tokens, start=start, key=self._key)
        mel = reference(self._flow, window)[:, 2 * (self._rendered - start) :]
        self._rendered = start + tokens
        return mel


@pytest.fixture(scope="module")
def double(tiny_model: Model) -> Model:
    flow, hift = (copy.deepcopy(net).double() for net in s3gen_of(tiny_model))
    return with_networks(tiny_model, flow=flow, vocoder=hift)


def engine(model: Model, *, tokens: int = 45, profile: Profile = SMALL, **roles: bool) -> TTS:
    model = model.with_defaults(max_new_tokens=tokens)
    precision = {torch.float64: "float64"}.get(s3gen_of(model)[0].encoder_proj.weight.dtype, "float32")
    return TTS.over(model, profile, plan=eager_plan(model, profile, precision=precision, **roles))


def graphs(model: Model, **options: Any) -> TTS:
    tts = engine(model, renderer=True, **options)
    assert isinstance(tts._worker.renderer, CudaGraphRenderer)
    return tts


def plain(model: Model) -> TTS:
    tts = engine(model)
    tts._worker.renderer = WindowedRenderer(*s3gen_of(model), streaming=True)
    return tts


def joined(streams: list[Iterator[Any]]) -> list[np.ndarray]:
    return [np.concatenate([chunk.samples for chunk in stream]) for stream in streams]


def close(one: np.ndarray, other: np.ndarray) -> None:
    assert one.shape == other.shape
    assert np.abs(other).max() > 0.01, "silence proves nothing"
    np.testing.assert_allclose(one, other, rtol=0, atol=BOUND)


@pytest.mark.usefixtures("_same_noise")
def test_samples_are_those_of_the_reference_alone_and_in_a_batch(double: Model) -> None:
    with graphs(double) as fast:
        with plain(double) as slow:
            expected = [slow.say(text, seed=i).samples for i, text in enumerate(TEXTS)]
        alone = [fast.say(text, seed=i).samples for i, text in enumerate(TEXTS)]
        batched = joined([fast.stream(text, seed=i) for i, text in enumerate(TEXTS)])
    for one, other in zip(alone, expected, strict=True):
        close(one, other)
    for one, other in zip(batched, alone, strict=True):
        # Blocks of a batch are larger, and a bidirectional flow attends to a whole block.
        assert one.shape == other.shape


@pytest.mark.usefixtures("_same_noise")
def test_whole_segments_are_those_of_the_reference(double: Model) -> None:
    whole = replace(FAST, stream="segment")
    with engine(double, profile=whole) as slow:
        expected = [slow.say(text, seed=i).samples for i, text in enumerate(TEXTS)]
    with engine(double, profile=whole, renderer=True) as fast:
        batched = joined([fast.stream(text, seed=i) for i, text in enumerate(TEXTS)])
    for one, other in zip(batched, expected, strict=True):
        close(one, other)


def test_utterances_are_rendered_together(tiny_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[int] = []
    launch = CudaGraphRenderer.launch

    def counted(self: CudaGraphRenderer, blocks: Any) -> Any:
        together.append(len(blocks))
        return launch(self, blocks)

    monkeypatch.setattr(CudaGraphRenderer, "launch", counted)
    monkeypatch.setattr(HostCopy, "done", lambda _: False)  # as on a device that has much to do
    with graphs(tiny_model) as tts:
        streams = [tts.stream("The same words.", seed=i) for i in range(4)]
        outputs = joined(streams)
    assert max(together) > 1
    assert [len(samples) for samples in outputs] == [45 * 960] * 4


@pytest.mark.parametrize("tokens", [1, 3, 5, 8, 9, 20, 21, 24, 41])
def test_any_number_of_tokens_is_rendered_to_its_end(tiny_model: Model, tokens: int) -> None:
    with graphs(tiny_model, tokens=tokens) as tts:
        assert len(tts.say("Well.", seed=2).samples) == tokens * 960


def test_a_voice_with_hardly_a_prompt_is_rendered_too(tiny_model: Model) -> None:
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
        assert [len(samples) for samples in joined([mine, other])] == [9 * 960] * 2


def test_a_cancelled_request_disturbs_no_other(tiny_model: Model) -> None:
    with graphs(tiny_model) as tts:
        streams = [tts.stream(text, seed=i) for i, text in enumerate(TEXTS)]
        next(streams[1])
        streams[1].close()
        assert [len(samples) for samples in joined([streams[0], *streams[2:]])] == [45 * 960] * 3
    assert not tts._worker._in_flight


def test_a_block_that_fails_in_a_batch_ends_its_own_request_only(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, bad = CudaGraphRenderer.launch, int64_key(2, "flow")

    def failing(self: CudaGraphRenderer, blocks: list[Block]) -> Any:
        if any(block.stream.flow_key == bad for block in blocks):
            raise RuntimeError("a fault was planted here")
        return launch(self, blocks)

    monkeypatch.setattr(CudaGraphRenderer, "launch", failing)
    with graphs(tiny_model) as tts:
        streams = [tts.stream("The same words.", seed=i) for i in range(4)]
        with pytest.raises(EngineFault, match="planted"):
            list(streams[2])
        assert [len(samples) for samples in joined([streams[0], streams[1], streams[3]])] == [45 * 960] * 3


def test_everything_fast_at_once_says_the_same_each_time(tiny_model: Model) -> None:
    with engine(tiny_model, decoder=True, renderer=True) as tts:
        one, other = (tts.say(TEXTS[3], seed=5) for _ in range(2))
    assert one.sha256 == other.sha256
    assert len(one.samples) == 45 * 960


def test_what_may_be_cut_next_is_asked_after_the_launch(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first block is small, the next of a batch large. Between the two, 18 ids may wait: enough for
    another small one, too few for a large one."""
    can_render = Worker._can_render

    def late(self: Worker, snapshot: EngineSnapshot, *, decoding: bool) -> bool:
        utterances = [job.utterance for job in self._jobs.values() if job.utterance is not None]
        waited = all(u._taken or u.decoding.finished or len(u._waiting) >= 18 for u in utterances)
        return can_render(self, snapshot, decoding=decoding) and waited

    monkeypatch.setattr(Worker, "_can_render", late)
    with graphs(tiny_model, tokens=60) as tts:
        outputs = joined([tts.stream("The same words.", seed=i) for i in range(4)])
    assert [len(samples) for samples in outputs] == [60 * 960] * 4


def test_the_second_block_is_short_because_nothing_is_in_store_yet(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    plain = Utterance.take_block

    def counted(utterance: Utterance, timing: Timing, limits: BlockLimits) -> Block:
        block = plain(utterance, timing, limits)
        sizes.append(len(block.tokens))
        return block

    monkeypatch.setattr(Utterance, "take_block", counted)
    model = tiny_model.with_defaults(max_new_tokens=120, first_block_tokens=7, second_block_tokens=9)
    with TTS.over(model, "balanced") as tts:
        tts.say("Hello.", seed=1)
        assert sizes[:4] == [7 + LOOKAHEAD_TOKENS, 9, 18, 36]
        assert sum(sizes) <= 120
        alone = sorted(2 * sizes)
        sizes.clear()
        tts.say_many(["Hello.", "Hello."], seed=1)
    assert sorted(sizes) == alone, "where blocks are rendered one by one, they are cut alike in a batch"
