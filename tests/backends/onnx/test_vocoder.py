"""The vocoder on ONNX Runtime equals the vocoder in PyTorch, for any blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("onnxruntime")
from backends.onnx.test_flow_stream import tiny_source, wren_source

from nightingale.backends.base import ModelSource
from nightingale.backends.onnx.capabilities import VOCODER_GRAPHS
from nightingale.backends.onnx.numpy_weights import vocoder_weights
from nightingale.backends.onnx.rendering.vocoder import PASS_FRAMES, VocoderNetwork, VocoderStream
from nightingale.backends.torch.mel_stream import MelStream
from nightingale.backends.torch.sample_stream import open_sample_stream
from nightingale.backends.torch.weights import rendering_weights
from nightingale.models.frame_vocoder.config import FrameVocoderConfig
from nightingale.types import Samples

MAX_ERROR_DB = -50.0
"""The difference below the signal: a pitch that is rounded differently moves the phase of a frame."""
TINY_ERROR = 2e-3
Mel = NDArray[np.float32]


def network(source: ModelSource) -> VocoderNetwork:
    config = source.info.preset.vocoder
    assert isinstance(config, FrameVocoderConfig)
    graph = VOCODER_GRAPHS[config]
    return source.shared(
        "test-vocoder", lambda: VocoderNetwork(config, vocoder_weights(source), graph, threads=1)
    )


def mels_of(sizes: tuple[int, ...], seed: int = 0) -> list[Mel]:
    """Return mels like the flow's: smooth in time, so that f0 is too."""
    steps = np.random.default_rng(seed).normal(size=(sum(sizes) + 8, 80)).cumsum(0)
    whole = (steps[8:] - steps[:-8]) / 3 - 4
    return np.split(whole.astype(np.float32), np.cumsum(sizes)[:-1])


def error_db(got: Samples, expected: Samples) -> float:
    return float(10 * np.log10(np.square(got - expected).mean() / np.square(expected).mean()))


def spoken(source: ModelSource) -> list[Mel]:
    """Return the mel of an utterance in blocks."""
    from nightingale import wren
    from nightingale.voices.voice import Voice

    flow, _ = rendering_weights(source, "cpu")
    voice = Voice.load(wren.folder() / wren.VOICES / "heart.safetensors")
    stream, rng = MelStream(flow, voice, seed=1, streaming=True), np.random.default_rng(0)
    sizes = (10, 9, 18, 36, 64, 5)
    return [
        stream.push(rng.integers(6561, size=size).tolist(), final=n == 5).numpy().T.copy()
        for n, size in enumerate(sizes)
    ]


def both(source: ModelSource, mels: list[Mel]) -> tuple[list[Samples], list[Samples]]:
    """Return the blocks of ONNX Runtime and of PyTorch."""
    _, reference = rendering_weights(source, "cpu")
    expected = open_sample_stream(reference, seed=1, streaming=True)
    stream = VocoderStream(network(source), seed=1)
    got, want = [], []
    for number, mel in enumerate(mels):
        final = number == len(mels) - 1
        got.append(stream.push(mel, final=final))
        want.append(expected.push(torch.from_numpy(mel.T.copy()), final=final))
    assert [len(block) for block in got] == [len(block) for block in want]
    return got, want


def test_every_block_of_wren_equals_pytorch() -> None:
    mels = spoken(wren_source())
    assert max(len(mel) for mel in mels) > 2 * PASS_FRAMES
    got, want = both(wren_source(), mels)
    assert error_db(np.concatenate(got), np.concatenate(want)) < MAX_ERROR_DB


@pytest.mark.parametrize("sizes", [(2,), (1, 1, 1, 9), (4, 0, 2, 3), (3, 20), (5, 90, 0)])
def test_short_and_long_blocks_equal_pytorch(sizes: tuple[int, ...]) -> None:
    got, want = both(tiny_source(0.0), mels_of(sizes))
    together = np.concatenate(got)
    assert len(together) == 480 * sum(sizes)
    assert together.std() > 1e-4
    assert np.abs(together - np.concatenate(want)).max() < TINY_ERROR


def test_streams_of_one_network_are_independent() -> None:
    net, (first, second) = network(tiny_source(0.0)), mels_of((9, 12))
    alone, among = (VocoderStream(net, seed=3) for _ in range(2))
    other = VocoderStream(net, seed=4)
    for mel, final in ((first, False), (second, True)):
        other.push(second, final=False)
        assert np.array_equal(alone.push(mel, final=final), among.push(mel, final=final))
