"""The renderer on ONNX Runtime: the reference's samples, batches, and short utterances."""

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
from nightingale.backends.onnx.rendering.vocoder_stream import UpsampledPass, VocoderNetwork, VocoderStream
from nightingale.backends.profiles import PROFILES
from nightingale.backends.torch import TorchBackend
from nightingale.types import Samples

SETUP = Setup(profile=PROFILES["balanced"], machine=CPU, precision="float32")


def opened(source: ModelSource, *, max_batch: int = 1) -> OnnxRenderer:
    renderer = open_renderer(source, SETUP)
    assert isinstance(renderer, OnnxRenderer)
    renderer.max_batch = max_batch
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
    cuts = (10, 60)  # the last block has several passes
    blocks = [
        Block(stream=stream, tokens=tokens[:10], first=True, final=False, alone=True),
        Block(stream=stream, tokens=tokens[10:], first=False, final=True, alone=True),
    ]
    futures = [renderer.render([block]) for block in blocks]
    flow, hift = renderer._network, renderer._hift
    mels, vocoder = FlowStream(flow, voice, seed=2), VocoderStream(hift, seed=2)
    for block, size in zip(blocks, cuts, strict=True):
        assert len(block.tokens) == size
        ready = mels.next_block(block.tokens, final=block.final)
        assert ready is not None
        (mel,), (state,) = flow.render([ready])
        taken = vocoder.next_mel(mels.finish(ready, mel, state), final=block.final)
        assert taken is not None
        samples += hift.render([vocoder], [taken], final=block.final)
    for future, expected in zip(futures, samples, strict=True):
        assert np.array_equal(future.result()[0], expected)
    renderer.close()


def test_an_error_in_a_stage_ends_its_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    source, voice = tiny_source(1.0), voice_of(16)
    renderer = opened(source)
    (tokens,) = streams([60])
    upsample, failed = VocoderNetwork.upsample, []

    def once(self: VocoderNetwork, *arguments: Any) -> UpsampledPass:
        if not failed:
            failed.append(arguments)
            raise RuntimeError("no pass")
        return upsample(self, *arguments)

    monkeypatch.setattr(VocoderNetwork, "upsample", once)
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
    # A vocoder with random weights amplifies rounding errors.
    assert np.sqrt(np.square(got - expected).mean()) < 1e-3
    mine.close()
    theirs.close()


def test_a_batch_equals_single_blocks() -> None:
    source, voice = tiny_source(1.0), voice_of(16)
    renderer = opened(source, max_batch=3)
    runs = list(streams([23, 23, 23]))
    alone = [render(renderer, renderer.open(voice, seed=n), run, wanted=7) for n, run in enumerate(runs)]
    opened_streams = [renderer.open(voice, seed=n) for n in range(3)]
    left, chunks, first, final = runs, list[list[Samples]](), True, False
    while not final:
        cuts = [
            s.next_cut(len(rest), finished=True, wanted=7)
            for s, rest in zip(opened_streams, left, strict=True)
        ]
        cut = cuts[0]
        assert cut is not None
        assert len({stream.batch_key(cut) for stream in opened_streams}) == 1
        blocks = [
            Block(stream=s, tokens=rest[: cut.tokens], first=first, final=cut.final, alone=False)
            for s, rest in zip(opened_streams, left, strict=True)
        ]
        chunks.append(renderer.render(blocks).result())
        left, first, final = [rest[cut.tokens :] for rest in left], False, cut.final
    for row, expected in enumerate(alone):
        got = np.concatenate([samples[row] for samples in chunks])
        assert np.abs(got - expected).max() < 1e-3
    renderer.close()
