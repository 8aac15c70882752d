"""The flow on ONNX Runtime equals the flow in PyTorch, for any blocks, with a prompt, and in batches."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_torch import seeded
from tiny_wren import TINY, TINY_VOCODER

pytest.importorskip("onnxruntime")

from nightingale import wren
from nightingale.backends.base import ModelInfo, ModelSource
from nightingale.backends.onnx.numpy_weights import flow_weights
from nightingale.backends.onnx.rendering.flow_stream import FlowNetwork, FlowStream
from nightingale.backends.torch.mel_stream import MelStream
from nightingale.backends.torch.weights import in_memory, rendering_weights
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale.voices.voice import Voice

BLOCKS = (10, 9, 18, 36, 64, 64, 5)
"""Tokens of each block, the first with the encoder's lookahead; more than the flow attends to."""
MAX_ERROR = 3e-5
"""The largest difference of mel values, which range over twelve."""
INT8_ERROR = 0.06
"""The largest mean difference with int8 products; mel values have a standard deviation of 2.6."""
Mel = NDArray[np.float32]


@cache
def wren_source() -> ModelSource:
    info = ModelInfo(name="wren", preset=PRESETS["wren"], defaults=MODEL_DEFAULTS["wren"])
    return ModelSource(info, {"s3gen": wren.folder() / wren.FILES["s3gen"]}, packed=True)


@cache
def tiny_source(noise_scale: float) -> ModelSource:
    """Return a tiny wren whose flow starts from noise."""
    preset = replace(
        TINY, flow=replace(TINY.flow, noise_scale=noise_scale, speaker_width=16, left_context=24)
    )
    rng = torch.Generator().manual_seed(3)
    with torch.random.fork_rng(devices=[]):
        networks = T3(preset.t3), Flow(preset.flow), FrameVocoder(TINY_VOCODER)
        t3, flow, vocoder = (seeded(net, rng) for net in networks)
    info = ModelInfo(name="wren", preset=preset, defaults=MODEL_DEFAULTS["wren"])
    return in_memory(info, t3=t3, flow=flow, vocoder=vocoder)


def network(source: ModelSource) -> FlowNetwork:
    return source.shared(
        "test-flow", lambda: FlowNetwork(source.info.preset.flow, flow_weights(source), threads=1)
    )


def voice_of(width: int, prompt_tokens: int = 0) -> Voice:
    rng = np.random.default_rng(prompt_tokens)
    return Voice.checked(
        name="random",
        family="wren",
        speaker=rng.normal(size=16),
        prompt_ids=np.zeros(0, np.int64),
        flow_prompt_ids=rng.integers(6561, size=prompt_tokens),
        flow_prompt_mel=rng.normal(size=(2 * prompt_tokens, 80)) - 5,
        flow_speaker=rng.normal(size=width),
    )


def blocks_of(seed: int, sizes: tuple[int, ...] = BLOCKS) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(6561, size=size).tolist() for size in sizes]


def push(flow: FlowNetwork, streams: list[FlowStream], tokens: list[list[int]], *, final: bool) -> list[Mel]:
    blocks = [stream.next_block(own, final=final) for stream, own in zip(streams, tokens, strict=True)]
    ready = [block for block in blocks if block is not None]
    mels, states = flow.render(ready)
    parts = zip(streams, ready, mels, states, strict=True)
    return [stream.finish(block, mel, state) for stream, block, mel, state in parts]


def test_every_block_equals_pytorch() -> None:
    source, voice = wren_source(), voice_of(256)
    reference, _ = rendering_weights(source, "cpu")
    expected = MelStream(reference, voice, seed=1, streaming=True)
    stream = FlowStream(network(source), voice, seed=1)
    for number, tokens in enumerate(blocks_of(0)):
        final = number == len(BLOCKS) - 1
        (mel,) = push(network(source), [stream], [tokens], final=final)
        want = expected.push(tokens, final=final).numpy().T
        assert mel.shape == want.shape
        assert np.abs(mel - want).max() < MAX_ERROR


@pytest.mark.parametrize("prompt_tokens", [0, 2, 12])
@pytest.mark.parametrize("noise_scale", [0.0, 1.0])
def test_prompts_and_noise_equal_pytorch(prompt_tokens: int, noise_scale: float) -> None:
    source, voice = tiny_source(noise_scale), voice_of(16, prompt_tokens)
    reference, _ = rendering_weights(source, "cpu")
    expected = MelStream(reference, voice, seed=4, streaming=True)
    stream = FlowStream(network(source), voice, seed=4)
    for number, tokens in enumerate(blocks_of(1, (8, 5, 9, 7))):
        final = number == 3
        (mel,) = push(network(source), [stream], [tokens], final=final)
        assert np.abs(mel - expected.push(tokens, final=final).numpy().T).max() < MAX_ERROR


def test_int8_is_close() -> None:
    source, voice = wren_source(), voice_of(256)
    exact = network(source)
    int8 = FlowNetwork(source.info.preset.flow, flow_weights(source), threads=1, int8=True)
    streams = [FlowStream(exact, voice, seed=1), FlowStream(int8, voice, seed=1)]
    errors = []
    for tokens in blocks_of(2, (11, 18, 30)):
        (expected,), (got,) = (
            push(flow, [stream], [tokens], final=False)
            for flow, stream in zip((exact, int8), streams, strict=True)
        )
        errors.append(float(np.abs(got - expected).mean()))
    assert 0 < max(errors) < INT8_ERROR


def test_too_few_tokens_make_no_block() -> None:
    source = tiny_source(0.0)
    stream = FlowStream(network(source), voice_of(16), seed=1)
    assert stream.next_block([1, 2, 3], final=False) is None
    (mel,) = push(network(source), [stream], [[]], final=True)
    assert len(mel) == 6


def test_a_batch_of_streams_of_different_ages_equals_single_streams() -> None:
    source = wren_source()
    flow, voices = network(source), [voice_of(256), voice_of(256), voice_of(256, 12)]

    def opened(row: int) -> tuple[FlowStream, list[list[int]]]:
        stream = FlowStream(flow, voices[row], seed=row)
        before, *common = blocks_of(row, (20 + 30 * row, 13, 13, 13))
        push(flow, [stream], [before], final=False)
        return stream, common

    alone = []
    for row in range(3):
        stream, common = opened(row)
        alone.append([push(flow, [stream], [tokens], final=n == 2)[0] for n, tokens in enumerate(common)])
    together = [opened(row) for row in range(3)]
    for number in range(3):
        tokens = [common[number] for _, common in together]
        got = push(flow, [stream for stream, _ in together], tokens, final=number == 2)
        for row, mel in enumerate(got):
            assert np.abs(mel - alone[row][number]).max() < MAX_ERROR
