"""The flow and the vocoder on MLX against PyTorch: mel, samples, streams, and bugs of other ports."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

mx = pytest.importorskip("mlx.core")

from backends.conformance import FAMILIES, Case, setup_for, source_of, streams, voice_of  # noqa: E402
from backends.mlx.steady_pitch import steady_wren  # noqa: E402
from backends.small_t3 import relative_error  # noqa: E402

from nightingale.backends.base import Block, ModelSource  # noqa: E402
from nightingale.backends.mlx import arrays  # noqa: E402
from nightingale.backends.mlx.renderer import load_vocoder, open_renderer  # noqa: E402
from nightingale.backends.mlx.rendering import convolutions, flow_network, waveform_stream  # noqa: E402
from nightingale.backends.mlx.rendering.convolutions import Conv  # noqa: E402
from nightingale.backends.mlx.rendering.flow_network import MlxFlow  # noqa: E402
from nightingale.backends.mlx.rendering.frame_stream import FrameStream, prepare_prompt  # noqa: E402
from nightingale.backends.mlx.rendering.frame_vocoder import MlxFrameVocoder  # noqa: E402
from nightingale.backends.mlx.rendering.hift_network import (  # noqa: E402
    BINS,
    MlxHift,
    istft_columns,
    stft_matrix,
)
from nightingale.backends.mlx.rendering.waveform_stream import (  # noqa: E402
    lookahead_samples,
    open_waveform_stream,
)
from nightingale.backends.mlx.weight_files import flow_weights  # noqa: E402
from nightingale.backends.profiles import PROFILES  # noqa: E402
from nightingale.backends.torch.mel_stream import MelStream, render_mel  # noqa: E402
from nightingale.backends.torch.sample_stream import open_sample_stream, render_samples  # noqa: E402
from nightingale.models.chatterbox.hift import receptive_field  # noqa: E402

SEED, CUTS = 3, (10, 22, 30, 40)
MEL_ERROR = 5e-5
SAMPLE_ERROR = {"largest": 5e-3, "rms": 2e-4}
"""Differences from PyTorch. The vocoder's random weights amplify rounding; full scale is 1."""

families = pytest.mark.parametrize("family", FAMILIES)


def flow_of(family: str) -> MlxFlow:
    source = source_of(family)
    return MlxFlow(source.info.preset.flow, flow_weights(source))


def vocoder_of(family: str, dtype: mx.Dtype = mx.float32) -> MlxHift | MlxFrameVocoder:
    return load_vocoder(vocoder_source(family), dtype)


def vocoder_source(family: str) -> ModelSource:
    return steady_wren() if family == "wren" else source_of(family)


def render_whole(vocoder: MlxHift | MlxFrameVocoder, mel: mx.array) -> np.ndarray:
    """Return the samples of a mel (1, frames, bands)."""
    stream = open_waveform_stream(vocoder, seed=SEED)
    assert len(stream.push(mel[:, :0], final=False)) == 0  # the flow collects the tokens
    return stream.push(mel, final=True)


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
    vocoder, torch_vocoder = vocoder_of(family), vocoder_source(family).loaded("s3gen")[1]
    mel = np.random.default_rng(0).normal(size=(80, CUTS[-1])).astype(np.float32)
    expected = render_samples(torch_vocoder, torch.tensor(mel), seed=SEED)
    check_samples(render_whole(vocoder, mx.array(mel.T[None])), expected)
    stream = open_waveform_stream(vocoder, seed=SEED)
    reference = open_sample_stream(torch_vocoder, seed=SEED, streaming=True)
    joined = []
    for start, end in zip((0, *CUTS[:-1]), CUTS, strict=True):
        block, final = mel[:, start:end], end == CUTS[-1]
        joined.append(stream.push(mx.array(block.T[None]), final=final))
        check_samples(joined[-1], reference.push(torch.tensor(block), final=final))
    if family == "wren":  # the frame vocoder's stream is exact
        check_samples(np.concatenate(joined), expected)


def check_samples(mine: np.ndarray, theirs: np.ndarray) -> None:
    assert mine.shape == theirs.shape
    error = mine - theirs
    assert np.abs(error).max(initial=0) < SAMPLE_ERROR["largest"]
    assert len(error) == 0 or np.sqrt(np.square(error).mean()) < SAMPLE_ERROR["rms"]


def test_hifts_lookahead_counted_on_a_graph_is_that_of_its_layers() -> None:
    """One frame more or less would shift the stream against the whole."""
    hift = vocoder_of("english")
    assert isinstance(hift, MlxHift)
    expected = receptive_field.lookahead_samples(source_of("english").loaded("s3gen")[1])
    assert lookahead_samples(hift) == expected


@pytest.mark.parametrize("family", ["english", "wren"])
def test_a_padded_last_block_has_the_same_mel(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last block is padded where functions are compiled, so that few sizes occur."""
    flow, voice, (tokens,) = flow_of(family), voice_of(16), streams([CUTS[-1]])

    def rendered() -> list[np.ndarray]:
        whole = FrameStream(flow, voice, seed=SEED, prompt=None).push(list(tokens), final=True)
        stream = FrameStream(flow, voice, seed=SEED, prompt=prepare_prompt(flow, voice))
        return [np.array(whole), *(np.array(stream.push(b, final=f)) for b, f in blocks_of(list(tokens)))]

    expected = rendered()
    monkeypatch.setattr(flow_network, "compiles", lambda: True)
    for mine, theirs in zip(rendered(), expected, strict=True):
        assert mine.shape == theirs.shape
        assert np.abs(mine - theirs).max() < MEL_ERROR


@pytest.mark.parametrize("family", ["english", "wren"])
def test_few_sizes_of_blocks_render_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """HiFT's whole is cut and the frame vocoder's last block is padded, where functions are compiled."""
    vocoder = vocoder_of(family)
    mel = mx.array(np.random.default_rng(0).normal(size=(1, 75, 80)), mx.float32)
    expected = render_whole(vocoder, mel)
    monkeypatch.setattr(waveform_stream, "compiles", lambda: True)
    monkeypatch.setattr(waveform_stream, "TIME_BLOCK_FRAMES", 25)
    check_samples(render_whole(vocoder, mel), expected)


@pytest.mark.parametrize("family", ["english", "wren"])
def test_float16_stays_near_float32(family: str) -> None:
    source, voice, (tokens,) = source_of(family), voice_of(16), streams([CUTS[-1]])
    mels, waves = [], []
    for dtype in (mx.float32, mx.float16):
        flow = MlxFlow(source.info.preset.flow, flow_weights(source), dtype=dtype)
        mels.append(np.array(FrameStream(flow, voice, seed=SEED, prompt=None).push(list(tokens), final=True)))
        waves.append(render_whole(vocoder_of(family, dtype), mx.array(mels[0])))
    assert mels[1].dtype == waves[1].dtype == np.float32
    assert 1e-6 < relative_error(mels[1], mels[0]) < 0.01
    assert 1e-6 < relative_error(waves[1], waves[0]) < 0.1  # random weights amplify rounding


@pytest.mark.parametrize("family", ["turbo", "wren"])
def test_a_block_is_evaluated_twice_and_read_once(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow is evaluated while the host builds the vocoder's graph, and the samples are read at the end."""
    counts: Counter[str] = Counter()

    def counting(name: str, function: Any) -> Any:
        def count(*args: Any) -> Any:
            counts[name] += 1
            return function(*args)

        return count

    profile = replace(PROFILES["balanced"], stream="block")
    renderer = open_renderer(*setup_for(Case("mlx", "float32"), family, profile))
    stream, (tokens,) = renderer.open(voice_of(16), seed=1), streams([CUTS[-1]])
    monkeypatch.setattr(mx, "async_eval", counting("started", mx.async_eval))
    monkeypatch.setattr(mx, "eval", counting("evaluated", mx.eval))
    monkeypatch.setattr(waveform_stream, "read", counting("read", waveform_stream.read))
    for number, (block, final) in enumerate(blocks_of(list(tokens))):
        renderer.render([Block(stream=stream, tokens=block, first=number == 0, final=final, alone=True)])
    assert counts == dict.fromkeys(("started", "evaluated", "read"), len(CUTS))


def test_a_function_is_compiled_once_for_each_shape_and_option(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[tuple[str, int]] = []

    def function(option: str, x: mx.array) -> tuple[mx.array, str]:
        traced.append((option, len(x)))
        return x[::-1], option.upper()

    monkeypatch.setattr(arrays, "compiles", lambda: True)
    monkeypatch.setattr(arrays, "COMPILED_SHAPES", 2)
    functions = arrays.CompiledFunctions(function)
    for option, size in (("a", 2), ("a", 2), ("a", 3), ("b", 3), ("a", 3), ("a", 2)):
        result, told = functions(option, mx.arange(size))
        assert (result.tolist(), told) == (list(range(size))[::-1], option.upper())
    assert traced == [("a", 2), ("a", 3), ("b", 3), ("a", 2)]  # the first one was dropped for the third


@pytest.mark.slow
@pytest.mark.parametrize("family", ["english", "wren"])
def test_compiled_functions_render_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are compiled on a GPU only; here MLX compiles them with a C++ compiler."""
    voice, (tokens,) = voice_of(16), streams([CUTS[-1]])

    def rendered() -> np.ndarray:
        flow, vocoder = flow_of(family), vocoder_of(family)
        mel = FrameStream(flow, voice, seed=SEED, prompt=prepare_prompt(flow, voice))
        wave = open_waveform_stream(vocoder, seed=SEED)
        return np.concatenate([wave.push(mel.push(b, final=f), final=f) for b, f in blocks_of(list(tokens))])

    expected = rendered()
    for module in (arrays, flow_network, waveform_stream):
        monkeypatch.setattr(module, "compiles", lambda: True)
    check_samples(rendered(), expected)


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
