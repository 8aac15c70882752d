"""The renderer on ONNX Runtime: the reference's samples, its pipeline, and short utterances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
from backends.conformance import CPU, streams
from backends.onnx.test_flow_stream import tiny_source, voice_of, wren_source
from backends.test_renderer_conformance import render

from nightingale.backends.base import Block, ModelSource, Renderer, Setup
from nightingale.backends.onnx.opening import open_renderer
from nightingale.backends.onnx.renderer import OnnxRenderer
from nightingale.backends.onnx.rendering.flow_stream import FlowStream
from nightingale.backends.onnx.rendering.vocoder import VocoderStream
from nightingale.backends.profiles import PROFILES
from nightingale.backends.torch import TorchBackend
from nightingale.types import Samples

SETUP = Setup(profile=PROFILES["balanced"], machine=CPU, precision="float32")


def opened(source: ModelSource) -> OnnxRenderer:
    renderer = open_renderer(source, SETUP)
    assert isinstance(renderer, OnnxRenderer)
    return renderer


def reference(source: ModelSource) -> Renderer:
    return TorchBackend().open_renderer(source, SETUP)


def test_samples_equal_the_reference() -> None:
    source, voice = wren_source(), voice_of(256)
    mine, theirs = opened(source), reference(source)
    (tokens,) = streams([50])
    got, expected = (render(renderer, renderer.open(voice, seed=2), tokens) for renderer in (mine, theirs))
    assert len(got) == len(expected) == 960 * 50
    error = np.sqrt(np.square(got - expected).mean() / np.square(expected).mean())
    assert 20 * np.log10(error) < -55  # random tokens: f0 jumps, and each rounding error moves the phase
    mine.close()
    theirs.close()


def test_the_pipeline_gives_the_samples_of_one_thread() -> None:
    source, voice = wren_source(), voice_of(256)
    renderer = opened(source)
    stream, samples = renderer.open(voice, seed=2), list[Samples]()
    (tokens,) = streams([70])
    blocks = [
        Block(stream=stream, tokens=tokens[:10], first=True, final=False, alone=True),
        Block(stream=stream, tokens=tokens[10:], first=False, final=True, alone=True),
    ]
    futures = [renderer.render([block]) for block in blocks]
    flow, mels = renderer._flow_network, FlowStream(renderer._flow_network, voice, seed=2)
    vocoder = VocoderStream(renderer._vocoder_network, seed=2)
    for block in blocks:
        ready = mels.next_block(block.tokens, final=block.final)
        assert ready is not None
        (mel,), (state,) = flow.render([ready])
        samples.append(vocoder.push(mels.finish(ready, mel, state), final=block.final))
    for future, expected in zip(futures, samples, strict=True):
        assert np.array_equal(future.result()[0], expected)
    renderer.close()


def test_an_error_in_a_stage_ends_its_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    source, voice = tiny_source(1.0), voice_of(16)
    renderer = opened(source)
    (tokens,) = streams([60])
    push, failed = VocoderStream.push, []

    def once(self: VocoderStream, mel: Any, *, final: bool) -> Samples:
        if not failed:
            failed.append(self)
            raise RuntimeError("no pass")
        return push(self, mel, final=final)

    monkeypatch.setattr(VocoderStream, "push", once)
    blocks = [
        Block(stream=renderer.open(voice, seed=n), tokens=tokens, first=True, final=True, alone=True)
        for n in range(2)
    ]
    lost, kept = (renderer.render([block]) for block in blocks)
    with pytest.raises(RuntimeError, match="no pass"):
        lost.result(timeout=60)
    assert len(kept.result(timeout=60)[0]) == 960 * 60
    renderer.close()


@pytest.mark.parametrize("prompt_tokens", [0, 2, 9])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 12])
def test_short_utterances_have_all_their_samples(prompt_tokens: int, count: int) -> None:
    source, voice = tiny_source(1.0), voice_of(16, prompt_tokens)
    mine, theirs = opened(source), reference(source)
    (tokens,) = streams([count])
    got, expected = (
        render(renderer, renderer.open(voice, seed=2), tokens, wanted=1) for renderer in (mine, theirs)
    )
    assert len(got) == 960 * count
    # A pitch that is rounded differently moves phases.
    assert np.sqrt(np.square(got - expected).mean()) < 1e-3
    mine.close()
    theirs.close()
