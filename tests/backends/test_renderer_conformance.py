"""Every renderer obeys the contract: streams equal the whole, batches equal single blocks, errors stay local."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from backends.conformance import (
    RENDERERS,
    Case,
    as_parameters,
    rendered_family,
    setup_for,
    source_of,
    streams,
    voice_of,
)

from nightingale.backends.base import Block, Renderer, RenderStream
from nightingale.backends.profiles import PROFILES
from nightingale.backends.torch.mel_stream import render_mel
from nightingale.backends.torch.sample_stream import render_samples
from nightingale.types import Samples

TOKENS = 40
TOLERANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.05, "int8": 0.05}
"""Largest difference of two ways to the same samples, by precision; full scale is 1. A vocoder with random
weights amplifies rounding."""

renderers = pytest.mark.parametrize("case", as_parameters(RENDERERS))


def opened(case: Case, family: str, **changes: Any) -> Renderer:
    profile = replace(PROFILES["balanced"], first_block_tokens=5, largest_block_tokens=20, **changes)
    source, setup = setup_for(case, family, profile)
    return case.object.open_renderer(source, setup)


def render(renderer: Renderer, stream: RenderStream, tokens: list[int], *, wanted: int = 10) -> Samples:
    """Render an utterance block by block, as the engine does when all of its tokens are known."""
    left, chunks, first = list(tokens), [], True
    while True:
        cut = stream.next_cut(len(left), finished=True, wanted=wanted)
        assert cut is not None
        block = Block(stream=stream, tokens=left[: cut.tokens], first=first, final=cut.final, alone=True)
        chunks += renderer.render([block]).result()
        left, first = left[cut.tokens :], False
        if cut.final:
            return np.concatenate(chunks)


@renderers
def test_each_token_gives_960_samples_and_the_seed_decides_them(case: Case) -> None:
    renderer = opened(case, rendered_family(case))
    (tokens,) = streams([TOKENS])
    one, again, other = (
        render(renderer, renderer.open(voice_of(16), seed=seed), tokens) for seed in (1, 1, 2)
    )
    assert len(one) == 960 * TOKENS
    assert np.isfinite(one).all()
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    renderer.close()


@renderers
@pytest.mark.parametrize("family", ["turbo", "wren"])
def test_the_audio_does_not_depend_on_when_tokens_arrive(case: Case, family: str) -> None:
    """A stream whose tokens arrive three at a time equals the one whose tokens are all known at once."""
    if case.backend == "cuda" and family == "wren":
        family = "multilingual"  # a block-causal flow has no graphs
    if case.backend == "onnx":
        family = rendered_family(case)
    renderer = opened(case, family)
    (tokens,) = streams([TOKENS])
    expected = render(renderer, renderer.open(voice_of(16), seed=3), tokens)
    stream = renderer.open(voice_of(16), seed=3)
    arriving, left, chunks, first = list(tokens), list[int](), list[Samples](), True
    while True:
        left, arriving = left + arriving[:3], arriving[3:]
        cut = stream.next_cut(len(left), finished=not arriving, wanted=10)
        if cut is None:
            continue
        block = Block(stream=stream, tokens=left[: cut.tokens], first=first, final=cut.final, alone=True)
        chunks += renderer.render([block]).result()
        left, first = left[cut.tokens :], False
        if cut.final:
            break
    assert len(chunks) > 2
    assert np.abs(np.concatenate(chunks) - expected).max() < TOLERANCE[case.precision]
    renderer.close()


@pytest.mark.parametrize("family", ["turbo", "multilingual", "wren"])
def test_a_whole_segment_has_the_bits_of_the_reference(family: str) -> None:
    (tokens,) = streams([TOKENS])
    case = Case("torch", "float32")
    source, setup = setup_for(case, family, replace(PROFILES["balanced"], stream="segment"))
    renderer, voice = case.object.open_renderer(source, setup), voice_of(16)
    flow, hift = source_of(family).loaded("s3gen")
    mel = render_mel(flow, tokens, voice, seed=3)
    expected = render_samples(hift, mel, seed=3)
    assert np.array_equal(render(renderer, renderer.open(voice, seed=3), tokens, wanted=TOKENS), expected)


@pytest.mark.parametrize("case", as_parameters([c for c in RENDERERS if c.backend not in ("onnx", "noise")]))
def test_the_number_of_flow_steps_is_the_profiles(case: Case) -> None:
    (tokens,) = streams([TOKENS])
    family = rendered_family(case)
    before = source_of(family).loaded("s3gen")[0].steps
    two, again, four = (opened(case, family, flow_steps=steps) for steps in (None, 2, 4))
    spoken = [render(one, one.open(voice_of(16), seed=1), tokens) for one in (two, again, four)]
    assert np.array_equal(spoken[0], spoken[1])
    assert np.abs(spoken[0] - spoken[2]).max() > 1e-2
    assert source_of(family).loaded("s3gen")[0].steps == before, "engines share the weights"


@renderers
def test_interleaved_streams_equal_single_ones(case: Case) -> None:
    renderer = opened(case, rendered_family(case))
    runs = list(streams([20, 30]))
    voices = [voice_of(16, number) for number in (0, 1)]
    alone = [
        render(renderer, renderer.open(voice, seed=5), tokens)
        for voice, tokens in zip(voices, runs, strict=True)
    ]
    pair = [renderer.open(voice, seed=5) for voice in voices]
    left, chunks = [list(run) for run in runs], [[], []]  # type: ignore[var-annotated]
    ended = [False, False]
    first = [True, True]
    while not all(ended):
        for n, stream in enumerate(pair):
            if ended[n]:
                continue
            cut = stream.next_cut(len(left[n]), finished=True, wanted=10)
            assert cut is not None
            block = Block(
                stream=stream, tokens=left[n][: cut.tokens], first=first[n], final=cut.final, alone=False
            )
            chunks[n] += renderer.render([block]).result()
            left[n], first[n], ended[n] = left[n][cut.tokens :], False, cut.final
    for mine, expected in zip(chunks, alone, strict=True):
        assert np.abs(np.concatenate(mine) - expected).max() < TOLERANCE[case.precision]
    renderer.close()


@pytest.mark.parametrize("case", [case for case in RENDERERS if case.backend == "cuda"], ids=str)
def test_a_batch_equals_single_blocks(case: Case) -> None:
    renderer = opened(case, rendered_family(case))
    assert renderer.max_batch > 1
    runs = list(streams([13, 13, 13]))
    alone = [render(renderer, renderer.open(voice_of(16), seed=n), run) for n, run in enumerate(runs)]
    opened_streams = [renderer.open(voice_of(16), seed=n) for n in range(len(runs))]
    left, chunks, first = [list(run) for run in runs], [[] for _ in runs], True  # type: ignore[var-annotated]
    while True:
        cuts = [
            s.next_cut(len(rest), finished=True, wanted=10)
            for s, rest in zip(opened_streams, left, strict=True)
        ]
        assert all(cut == cuts[0] for cut in cuts)
        cut = cuts[0]
        assert cut is not None
        assert len({stream.batch_key(cut) for stream in opened_streams}) == 1
        blocks = [
            Block(stream=s, tokens=rest[: cut.tokens], first=first, final=cut.final, alone=False)
            for s, rest in zip(opened_streams, left, strict=True)
        ]
        for mine, samples in zip(chunks, renderer.render(blocks).result(), strict=True):
            mine.append(samples)
        left, first = [rest[cut.tokens :] for rest in left], False
        if cut.final:
            break
    for mine, expected in zip(chunks, alone, strict=True):
        assert np.abs(np.concatenate(mine) - expected).max() < TOLERANCE[case.precision]


@pytest.mark.parametrize("case", [c for c in RENDERERS if c.backend in ("cpu", "mlx")], ids=str)
@pytest.mark.parametrize("family", ["multilingual", "turbo"])
def test_whole_segments_equal_the_reference(case: Case, family: str) -> None:
    """Each way to render a segment whole is deterministic; in float32 it gives PyTorch's samples.

    A random vocoder turns a small error of the mel into another phase, so int8 is compared by mels
    (cpu/test_int8_networks.py).
    """
    (tokens,) = streams([TOKENS])
    reference = opened(Case("torch", "float32"), family, stream="segment")
    expected = render(reference, reference.open(voice_of(16), seed=7), tokens)
    renderer = opened(case, family, stream="segment")
    one, other, again = (
        render(renderer, renderer.open(voice_of(16, number), seed=7), tokens) for number in (0, 1, 0)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert len(one) == len(expected)
    if case.exact:  # but for a few samples, where the phase of this loud vocoder turns over
        assert np.mean(np.abs(one - expected) > TOLERANCE[case.precision]) < 0.001
    renderer.close()


@renderers
def test_an_utterance_without_tokens_is_empty(case: Case) -> None:
    renderer = opened(case, rendered_family(case))
    assert len(render(renderer, renderer.open(voice_of(16), seed=1), [])) == 0
    renderer.close()


@renderers
def test_closing_ends_the_renderers_threads(case: Case) -> None:
    import threading

    before = threading.active_count()
    renderer = opened(case, rendered_family(case))
    render(renderer, renderer.open(voice_of(16), seed=1), [1, 2, 3])
    renderer.close()
    assert threading.active_count() <= before
