"""The vocoder on ONNX Runtime equals the vocoder in PyTorch, for any blocks and in batches."""

from __future__ import annotations

import platform

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("onnxruntime")
from backends.onnx.test_flow_stream import tiny_source, wren_source

from nightingale.backends.base import ModelSource
from nightingale.backends.onnx.numpy_weights import hift_weights
from nightingale.backends.onnx.rendering.excitation import sum_in_phase
from nightingale.backends.onnx.rendering.hift_graph import istft_kernel, stft_kernel
from nightingale.backends.onnx.rendering.vocoder_stream import VocoderNetwork, VocoderStream
from nightingale.backends.torch.mel_stream import MelStream
from nightingale.backends.torch.sample_stream import SampleStream
from nightingale.backends.torch.weights import rendering_weights
from nightingale.types import Samples

FRAMES = (14, 18, 36, 72, 128, 10)
MAX_ERROR_DB = -70.0
"""The difference below the signal. A vocoder integrates f0, so rounding errors become shifts of phase."""
Mel = NDArray[np.float32]


def network(source: ModelSource) -> VocoderNetwork:
    return source.shared(
        "test-hift", lambda: VocoderNetwork(source.info.preset.hift, hift_weights(source), threads=1)
    )


def mels_of(source: ModelSource, sizes: tuple[int, ...] = FRAMES, seed: int = 0) -> list[Mel]:
    """Return mels like the flow's: smooth in time, so that f0 is too."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=(sum(sizes) + 8, source.info.preset.hift.mel_bands)).cumsum(0)
    whole = (steps[8:] - steps[:-8]) / 3 - 4
    return np.split(whole.astype(np.float32), np.cumsum(sizes)[:-1])


def push(
    hift: VocoderNetwork, streams: list[VocoderStream], mels: list[Mel], *, final: bool
) -> list[Samples]:
    taken = [stream.next_mel(mel, final=final) for stream, mel in zip(streams, mels, strict=True)]
    ready = [mel for mel in taken if mel is not None]
    if not ready:
        return [np.zeros(0, np.float32) for _ in streams]
    return hift.render(streams, ready, final=final)


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


def test_every_block_equals_pytorch() -> None:
    source = wren_source()
    _, reference = rendering_weights(source, "cpu")
    expected = SampleStream(reference, seed=1, streaming=True)
    hift, stream = network(source), VocoderStream(network(source), seed=1)
    mels = spoken(source)
    got, want = [], []
    for number, mel in enumerate(mels):
        final = number == len(mels) - 1
        got += push(hift, [stream], [mel], final=final)
        want.append(expected.push(torch.from_numpy(mel.T.copy()), final=final))
        assert len(got[-1]) == len(want[-1])
    assert error_db(np.concatenate(got), np.concatenate(want)) < MAX_ERROR_DB


@pytest.mark.skipif(platform.machine() not in ("aarch64", "arm64"), reason="float16 is for ARM")
def test_float16_is_near_float32() -> None:
    source = wren_source()
    half = VocoderNetwork(source.info.preset.hift, hift_weights(source), threads=1, float16=True)
    mels, rendered = spoken(source), []
    for hift in (half, network(source)):
        stream = VocoderStream(hift, seed=1)
        blocks = [push(hift, [stream], [mel], final=n == len(mels) - 1)[0] for n, mel in enumerate(mels)]
        rendered.append(np.concatenate(blocks))
    assert MAX_ERROR_DB < error_db(*rendered) < -30


@pytest.mark.parametrize("sizes", [(2,), (1, 1, 1, 9), (4, 1, 2, 3), (3, 20)])
def test_short_blocks_equal_pytorch(sizes: tuple[int, ...]) -> None:
    source = tiny_source(0.0)
    _, reference = rendering_weights(source, "cpu")
    expected = SampleStream(reference, seed=1, streaming=True)
    stream = VocoderStream(network(source), seed=1)
    got, want = [], []
    for number, mel in enumerate(mels_of(source, sizes)):
        final = number == len(sizes) - 1
        got += push(network(source), [stream], [mel], final=final)
        want.append(expected.push(torch.from_numpy(mel.T.copy()), final=final))
    together = np.concatenate(got)
    assert len(together) == 480 * sum(sizes)
    assert np.abs(together - np.concatenate(want)).max() < 1e-3


def test_a_batch_equals_single_streams() -> None:
    source = wren_source()
    hift, rows = network(source), [mels_of(source, (20, 18, 6), seed) for seed in range(3)]
    alone = []
    for seed, mels in enumerate(rows):
        stream = VocoderStream(hift, seed=seed)
        alone.append([push(hift, [stream], [mel], final=n == 2)[0] for n, mel in enumerate(mels)])
    streams = [VocoderStream(hift, seed=seed) for seed in range(3)]
    for number in range(3):
        got = push(hift, streams, [mels[number] for mels in rows], final=number == 2)
        for row, samples in enumerate(got):
            assert np.abs(samples - alone[row][number]).max() < 1e-4


def test_the_inverse_transform_restores_the_signal() -> None:
    signal = np.random.default_rng(0).normal(size=64).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(signal, 16)[::4]
    spectrum = windows @ stft_kernel()[:, 0].T  # (columns, 18)
    covered = np.lib.stride_tricks.sliding_window_view(spectrum, 4, axis=0)  # (hops, 18, 4)
    restored = np.einsum("nct,pct->np", covered, istft_kernel()).reshape(-1)
    np.testing.assert_allclose(restored, signal[12 : 12 + len(restored)], atol=1e-5)


def test_the_sum_of_harmonics_equals_its_definition() -> None:
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, size=(3, 8)).astype(np.float32)
    amplitude = rng.normal(size=(12, 3)).astype(np.float32)
    harmonic = np.arange(1, 13)[:, None, None]
    expected = (amplitude[..., None] * np.sin(harmonic * angle)).sum(axis=0)
    np.testing.assert_allclose(sum_in_phase(angle, amplitude), expected, atol=1e-4)
