"""The flow and the vocoder on MLX against PyTorch: mel, samples, streams, and bugs of other ports."""

from __future__ import annotations

import numpy as np
import pytest
import torch

mx = pytest.importorskip("mlx.core")

from backends.conformance import FAMILIES, source_of, streams, voice_of  # noqa: E402

from nightingale.backends.mlx.rendering import convolutions  # noqa: E402
from nightingale.backends.mlx.rendering.convolutions import Conv  # noqa: E402
from nightingale.backends.mlx.rendering.flow_network import MlxFlow  # noqa: E402
from nightingale.backends.mlx.rendering.frame_stream import FrameStream, prepare_prompt  # noqa: E402
from nightingale.backends.mlx.rendering.hift_network import (  # noqa: E402
    BINS,
    MlxHift,
    istft_columns,
    stft_matrix,
)
from nightingale.backends.mlx.rendering.waveform_stream import WaveformStream, lookahead_samples  # noqa: E402
from nightingale.backends.mlx.weight_files import flow_weights, hift_weights  # noqa: E402
from nightingale.backends.torch.mel_stream import MelStream, render_mel  # noqa: E402
from nightingale.backends.torch.sample_stream import SampleStream, render_samples  # noqa: E402
from nightingale.models.chatterbox.hift import receptive_field  # noqa: E402

SEED, CUTS = 3, (10, 22, 30, 40)
MEL_ERROR = 5e-5
SAMPLE_ERROR = {"largest": 5e-3, "rms": 2e-4}
"""Differences from PyTorch. The vocoder's random weights amplify rounding; full scale is 1."""

families = pytest.mark.parametrize("family", FAMILIES)


def flow_of(family: str) -> MlxFlow:
    source = source_of(family)
    return MlxFlow(source.info.preset.flow, flow_weights(source))


def hift_of(family: str) -> MlxHift:
    source = source_of(family)
    return MlxHift(source.info.preset.hift, hift_weights(source))


def blocks_of(values: list[int]) -> list[tuple[list[int], bool]]:
    return [(values[start:end], end == CUTS[-1]) for start, end in zip((0, *CUTS[:-1]), CUTS, strict=True)]


@families
def test_the_mel_is_that_of_pytorch_whole_and_streamed(family: str) -> None:
    flow, torch_flow = flow_of(family), source_of(family).loaded("s3gen")[0]
    (tokens,), voice = streams([CUTS[-1]]), voice_of(16)
    whole = FrameStream(flow, voice, seed=SEED, prompt=None)
    assert whole.push(tokens[:20], final=False).shape[1] == 0
    mel = np.array(whole.push(tokens[20:], final=True))[0].T
    expected = render_mel(torch_flow, tokens, voice, seed=SEED).numpy()
    assert np.abs(mel - expected).max() < MEL_ERROR
    stream = FrameStream(flow, voice, seed=SEED, prompt=prepare_prompt(flow, voice))
    reference = MelStream(torch_flow, voice, seed=SEED, streaming=True)
    for block, final in blocks_of(tokens):
        mine = np.array(stream.push(list(block), final=final))[0].T
        theirs = reference.push(list(block), final=final).numpy()
        assert mine.shape == theirs.shape
        assert np.abs(mine - theirs).max() < MEL_ERROR


def test_the_solver_takes_as_many_steps_as_asked_for() -> None:
    source, voice, (tokens,) = source_of("english"), voice_of(16), streams([CUTS[-1]])
    flow = MlxFlow(source.info.preset.flow, flow_weights(source), steps=4)
    mel = np.array(FrameStream(flow, voice, seed=SEED, prompt=None).push(tokens, final=True))[0].T
    four = render_mel(source.loaded("s3gen")[0].with_steps(4), tokens, voice, seed=SEED).numpy()
    assert np.abs(mel - four).max() < MEL_ERROR


@pytest.mark.parametrize("family", ["english", "wren"])
def test_the_samples_are_those_of_pytorch_whole_and_streamed(family: str) -> None:
    hift, torch_hift = hift_of(family), source_of(family).loaded("s3gen")[1]
    mel = np.random.default_rng(0).normal(size=(80, CUTS[-1])).astype(np.float32)
    expected = render_samples(torch_hift, torch.tensor(mel), seed=SEED)
    samples = WaveformStream(hift, seed=SEED, streaming=False).push(mx.array(mel.T[None]), final=True)
    check_samples(samples, expected)
    stream = WaveformStream(hift, seed=SEED, streaming=True)
    reference = SampleStream(torch_hift, seed=SEED, streaming=True)
    joined = []
    for start, end in zip((0, *CUTS[:-1]), CUTS, strict=True):
        block, final = mel[:, start:end], end == CUTS[-1]
        joined.append(stream.push(mx.array(block.T[None]), final=final))
        check_samples(joined[-1], reference.push(torch.tensor(block), final=final))
    if family == "wren":  # a causal vocoder's stream is exact
        check_samples(np.concatenate(joined), expected)


def check_samples(mine: np.ndarray, theirs: np.ndarray) -> None:
    assert mine.shape == theirs.shape
    error = mine - theirs
    assert np.abs(error).max(initial=0) < SAMPLE_ERROR["largest"]
    assert len(error) == 0 or np.sqrt(np.square(error).mean()) < SAMPLE_ERROR["rms"]


@pytest.mark.parametrize("family", ["english", "wren"])
def test_the_lookahead_counted_on_a_graph_is_that_of_the_layers(family: str) -> None:
    """One frame more or less would shift the stream against the whole."""
    assert lookahead_samples(hift_of(family)) == receptive_field.lookahead_samples(
        source_of(family).loaded("s3gen")[1]
    )


def test_the_inverse_stft_undoes_the_stft() -> None:
    """Samples are divided by the sum of the squared windows. Dividing by that of the windows costs 2.5 dB."""
    signal = np.random.default_rng(1).normal(size=4 * 50 + 12).astype(np.float32)
    columns = np.stack([signal[at : at + 16] for at in range(0, len(signal) - 15, 4)])
    spectrum = mx.array(columns) @ stft_matrix()
    ones = mx.ones((len(columns), 1))
    both, _ = istft_columns()(mx.concatenate([spectrum, ones], axis=-1)[None], None)
    restored = np.array(both[0, :, 0] / both[0, :, 1])
    np.testing.assert_allclose(restored[12:], signal[12 : len(restored)], atol=1e-5)
    assert stft_matrix().shape == (16, 2 * BINS)


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(1, 1, 1), (3, 1, 5), (7, 1, 3), (30, 15, 1)])
def test_both_ways_to_convolve_give_the_same(
    kernel: int, stride: int, dilation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU uses MLX's convolution, a CPU a matrix product."""
    rng = np.random.default_rng(2)
    weight, bias, x = (
        mx.array(rng.normal(size=shape).astype(np.float32)) for shape in ((5, kernel, 4), (5,), (2, 90, 4))
    )
    conv = Conv(weight, bias, 2, 1, stride, dilation)
    product = np.array(conv(x))
    monkeypatch.setattr(convolutions, "runs_on_gpu", lambda: True)
    np.testing.assert_allclose(product, np.array(conv(x)), atol=1e-4)
    reference = torch.nn.functional.conv1d(
        torch.nn.functional.pad(torch.tensor(np.array(x)).transpose(1, 2), (2, 1)),
        torch.tensor(np.array(weight)).transpose(1, 2),
        torch.tensor(np.array(bias)),
        stride=stride,
        dilation=dilation,
    )
    np.testing.assert_allclose(product, reference.transpose(1, 2).numpy(), atol=1e-4)
