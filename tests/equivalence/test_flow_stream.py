"""Streaming of the flow: exact for block-causal flows, bounded in cost for bidirectional ones."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import accumulate
from statistics import median
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import tiny
from torch import Tensor

from nightingale.backends.shared.token_windows import CONTEXT_TOKENS
from nightingale.backends.torch import mel_stream
from nightingale.backends.torch.mel_stream import MelStream, PromptState, prepare_prompt
from nightingale.decoding.philox import normal, stream_key
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS, FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow, FlowState, render_block
from nightingale.voices.voice import Voice

SEED = 0
ROUNDING = 1e-4
KINDS = {"guided": tiny.TINY_FLOW, "meanflow": tiny.TINY_MEANFLOW}
CAUSAL = {
    kind: tiny.fill(Flow(replace(config, block_causal=True, mel_mean=-0.5, mel_std=1.5)))
    for kind, config in KINDS.items()
}
WINDOWED = tiny.fill(Flow(replace(tiny.TINY_MEANFLOW, block_causal=True, left_context=5)))
UNLIMITED = tiny.fill(Flow(replace(tiny.TINY_MEANFLOW, block_causal=True)))
BIDIRECTIONAL = {kind: tiny.fill(Flow(config)) for kind, config in KINDS.items()}


def ids_of(count: int, *, seed: int = 3) -> list[int]:
    return [int(token) for token in tiny.ids(count, seed)[0]]


def voice_of(prompt_tokens: int) -> Voice:
    return Voice.checked(
        name="speaker",
        family="wren",
        speaker=tiny.scatter((16,), 1),
        prompt_ids=torch.zeros(0, dtype=torch.int64),
        flow_prompt_ids=tiny.ids(prompt_tokens, 2)[0],
        flow_prompt_mel=tiny.scatter((2 * prompt_tokens, 80), 5),
        flow_speaker=tiny.scatter((192,), 6),
    )


def streamed(flow: Flow, ids: list[int], cuts: list[int], voice: Voice, **kept: PromptState) -> list[Tensor]:
    """Push the ids in blocks of these sizes, the last one final; return the mel of each push."""
    assert sum(cuts) == len(ids)
    stream = MelStream(flow, voice, seed=SEED, streaming=True, **kept)
    ends = list(accumulate(cuts))
    return [
        stream.push(ids[end - cut : end], final=number == len(cuts) - 1)
        for number, (cut, end) in enumerate(zip(cuts, ends, strict=True))
    ]


def blocks_of(prompt_tokens: int, cuts: list[int]) -> Tensor:
    """Return the push that renders each token: the one that has three more; -1 for the prompt."""
    known = [prompt_tokens + end for end in accumulate(cuts)]
    ready = [*(k - LOOKAHEAD_TOKENS for k in known[:-1]), known[-1]]
    ready = [r if r > prompt_tokens else 0 for r in ready]
    prompt_end = max(0, prompt_tokens - LOOKAHEAD_TOKENS)
    rows = [
        -1 if token < prompt_end else next(push for push, r in enumerate(ready) if r > token)
        for token in range(known[-1])
    ]
    return torch.tensor([rows])


def noise_of(flow: Flow, voice: Voice, tokens: int) -> Tensor:
    """Return the voice's noise over its prompt, and the request's noise after it."""
    prompt_end = 2 * max(0, len(voice.flow_prompt_ids) - LOOKAHEAD_TOKENS)
    of_voice, of_request = (
        torch.from_numpy(normal(stream_key(seed, purpose), 0, 2 * tokens, 80))
        for seed, purpose in ((0, f"prompt/{voice.content_hash}"), (SEED, "flow"))
    )
    return torch.cat([of_voice[:prompt_end], of_request[prompt_end:]]).T[None]


def whole(flow: Flow, ids: list[int], voice: Voice, blocks: Tensor | None) -> Tensor:
    tokens = torch.tensor([[*voice.flow_prompt_ids.tolist(), *ids]])
    mel: Tensor = flow(
        tokens,
        prompt_mel=torch.tensor(voice.flow_prompt_mel).T[None],
        speaker=torch.tensor(voice.flow_speaker)[None],
        noise=noise_of(flow, voice, tokens.shape[1]),
        blocks=blocks,
    )
    return mel[0]


CUTS = [[14], [1] * 14, [8, 1, 5, 0], [4, 4, 4, 2], [2, 1, 1, 10], [0, 11, 0, 3]]


@pytest.mark.parametrize(
    ("kind", "prompt_tokens", "cuts"),
    [
        *(("meanflow", prompt_tokens, cuts) for prompt_tokens in (0, 2, 9) for cuts in CUTS),
        ("guided", 0, CUTS[2]),
        ("guided", 5, CUTS[3]),
    ],
)
def test_a_block_causal_stream_equals_the_whole_in_those_blocks(
    kind: str, prompt_tokens: int, cuts: list[int]
) -> None:
    flow, voice, ids = CAUSAL[kind], voice_of(prompt_tokens), ids_of(14)
    mel = torch.cat(streamed(flow, ids, cuts, voice), dim=1)
    expected = whole(flow, ids, voice, blocks_of(prompt_tokens, cuts))
    assert mel.shape == expected.shape == (80, 28)
    assert (mel - expected).abs().max() <= ROUNDING


@settings(max_examples=15, deadline=None, derandomize=True)
@given(cuts=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), prompt=st.integers(0, 6))
def test_any_chunking_equals_the_whole_in_those_blocks(cuts: list[int], prompt: int) -> None:
    flow, voice, ids = CAUSAL["meanflow"], voice_of(prompt), ids_of(sum(cuts))
    mel = torch.cat(streamed(flow, ids, cuts, voice), dim=1)
    expected = whole(flow, ids, voice, blocks_of(prompt, cuts))
    assert (mel - expected).abs().max() <= ROUNDING


@pytest.mark.parametrize("cuts", [[2] * 12, [9, 1, 1, 13], [3, 8, 5, 8]], ids=str)
@pytest.mark.parametrize("prompt_tokens", [0, 9])
def test_a_stream_with_left_context_equals_the_whole_with_left_context(
    cuts: list[int], prompt_tokens: int
) -> None:
    voice, ids = voice_of(prompt_tokens), ids_of(24)
    mel = torch.cat(streamed(WINDOWED, ids, cuts, voice), dim=1)
    blocks = blocks_of(prompt_tokens, cuts)
    assert (mel - whole(WINDOWED, ids, voice, blocks)).abs().max() <= ROUNDING
    everything = whole(UNLIMITED, ids, voice, blocks)
    assert (mel - everything).abs().max() > 10 * ROUNDING  # otherwise the left context had no effect


def test_the_state_of_a_flow_with_left_context_does_not_grow() -> None:
    stream, sizes = MelStream(WINDOWED, voice_of(0), seed=SEED, streaming=True), []
    for _ in range(12):
        stream.push(ids_of(4), final=False)
        sizes.append(stream._past.nbytes if stream._past else 0)
    assert len(set(sizes[4:])) == 1


def test_the_blocks_of_a_stream_matter() -> None:
    """Check that the equality above depends on the blocks."""
    flow, voice, ids = CAUSAL["meanflow"], voice_of(5), ids_of(14)
    mel = torch.cat(streamed(flow, ids, [7, 7], voice), dim=1)
    assert (mel - whole(flow, ids, voice, None)).abs().max() > 10 * ROUNDING


@pytest.mark.parametrize("flow", [CAUSAL["meanflow"], BIDIRECTIONAL["meanflow"]], ids=["causal", "windows"])
def test_later_tokens_never_change_earlier_frames(flow: Flow) -> None:
    voice, ids, known = voice_of(5), ids_of(20), 12
    other = ids[:known] + ids_of(20, seed=9)[known:]
    a, b = (streamed(flow, x, [5, 7, 4, 4], voice) for x in (ids, other))
    assert torch.equal(torch.cat(a[:2], dim=1), torch.cat(b[:2], dim=1))
    assert not torch.allclose(a[2], b[2], atol=1e-2)


@pytest.mark.parametrize("flow", [CAUSAL["meanflow"], BIDIRECTIONAL["meanflow"]], ids=["causal", "windows"])
def test_streams_that_share_a_prompt_are_independent(flow: Flow) -> None:
    voice = voice_of(9)
    prompt = prepare_prompt(flow, voice)
    texts = [ids_of(16), ids_of(16, seed=9)]
    streams = [MelStream(flow, voice, seed=SEED, streaming=True, prompt=prompt) for _ in texts]
    together: list[list[Tensor]] = [[], []]
    for start in range(0, 16, 4):
        for row, (stream, ids) in enumerate(zip(streams, texts, strict=True)):
            together[row].append(stream.push(ids[start : start + 4], final=start == 12))
    for row, ids in enumerate(texts):
        alone = streamed(flow, ids, [4] * 4, voice)
        assert torch.equal(torch.cat(together[row], dim=1), torch.cat(alone, dim=1))


@pytest.mark.parametrize("kind", KINDS)
def test_windows_that_include_the_start_equal_the_whole(kind: str) -> None:
    """Nothing is approximated while everything fits the context and there is no prompt."""
    flow, voice, ids = BIDIRECTIONAL[kind], voice_of(0), ids_of(14)
    first = CONTEXT_TOKENS + LOOKAHEAD_TOKENS
    mel = streamed(flow, ids, [first, 14 - first], voice)
    expected = whole(flow, ids, voice, None)
    assert (mel[1] - expected[:, 2 * CONTEXT_TOKENS :]).abs().max() <= ROUNDING
    # The first block has not seen the second.
    assert (mel[0] - expected[:, : 2 * CONTEXT_TOKENS]).abs().max() > 10 * ROUNDING


@pytest.mark.parametrize("kind", KINDS)
def test_a_bidirectional_stream_stays_near_the_whole(kind: str) -> None:
    flow, voice, ids = BIDIRECTIONAL[kind], voice_of(20), ids_of(40)
    expected = whole(flow, ids, voice, None)
    mel = torch.cat(streamed(flow, ids, ramp(40), voice), dim=1)
    assert relative_l2(mel, expected) < 0.1
    assert relative_l2(mel.roll(1, dims=1), expected) > 1  # a shift by one frame is far off


def test_the_cost_of_a_window_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    flow, voice = BIDIRECTIONAL["meanflow"], voice_of(12)
    calls: list[tuple[int, int]] = []

    def recorded(flow: Flow, ids: Tensor, *, past: FlowState, **rest: Any) -> tuple[Tensor, FlowState]:
        mel, state = render_block(flow, ids, past=past, **rest)
        calls.append((ids.shape[1], state.nbytes))
        return mel, state

    prompt = prepare_prompt(flow, voice)
    monkeypatch.setattr(mel_stream, "render_block", recorded)
    streamed(flow, ids_of(120), [4] * 30, voice, prompt=prompt)
    steady = calls[4:-1]
    assert set(steady) == {(CONTEXT_TOKENS + 4 + LOOKAHEAD_TOKENS, prompt.nbytes)}


def test_a_prompt_has_the_same_state_for_every_request() -> None:
    flow, voice = BIDIRECTIONAL["guided"], voice_of(9)
    a, b = (prepare_prompt(flow, voice) for _ in range(2))
    assert a.past is not None
    assert b.past is not None
    for one, two in zip((a.past.encoder, *a.past.steps), (b.past.encoder, *b.past.steps), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))
    assert a.tokens == 9 - LOOKAHEAD_TOKENS
    assert len(a.past.steps) == 10
    assert prepare_prompt(flow, voice_of(3)).past is None


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "megabytes"), [("turbo", 241), ("english", 2282)])
def test_a_prompt_takes_as_much_memory_as_docs_streaming_says(preset: str, megabytes: int) -> None:
    with torch.device("meta"):  # shapes alone
        flow = Flow(PRESETS[preset].flow)
    assert prepare_prompt(flow, voice_of(250)).nbytes / 1e6 == pytest.approx(megabytes, abs=1)


def ramp(tokens: int, *, first: int = 8, most: int = 64) -> list[int]:
    """Return pushes that render blocks of 8, 16, 32, … tokens."""
    cuts, size = [first + LOOKAHEAD_TOKENS], first
    while sum(cuts) < tokens:
        size = min(2 * size, most)
        cuts.append(min(size, tokens - sum(cuts)))
    return cuts


def relative_l2(mel: Tensor, expected: Tensor) -> float:
    """Return the distance relative to the deviation from each band's mean."""
    return float((mel - expected).norm() / (expected - expected.mean(dim=1, keepdim=True)).norm())


MEDIUM = FlowConfig(
    encoder_width=128,
    encoder_heads=4,
    encoder_blocks=3,
    encoder_up_blocks=2,
    encoder_ffn=256,
    estimator_width=64,
    estimator_heads=2,
    estimator_mid_stages=4,
    estimator_stage_blocks=2,
)
RAMPS = {"8, 16, 32, 64": (8, 64), "all of 8": (8, 8), "all of 25": (25, 25)}


@pytest.mark.slow
@pytest.mark.parametrize("meanflow", [False, True], ids=["guided", "meanflow"])
def test_the_distances_in_docs_streaming(meanflow: bool) -> None:
    flow = tiny.fill(Flow(replace(MEDIUM, meanflow=meanflow)))
    voice, ids = voice_of(100), ids_of(120)
    expected = whole(flow, ids, voice, None)
    kind = "meanflow" if meanflow else "guided"
    for name, (first, most) in RAMPS.items():
        mel = torch.cat(streamed(flow, ids, ramp(120, first=first, most=most), voice), dim=1)
        print(f"\n| {kind} | {name} | {relative_l2(mel, expected):.3f} |", end="")
        assert relative_l2(mel, expected) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config", "prompt_tokens", "limit"),
    [
        ("guided, windows", MEDIUM, 100, 1.25),
        ("meanflow, windows", replace(MEDIUM, meanflow=True), 100, 1.25),
        ("wren, exact", replace(PRESETS["wren"].flow, speaker_width=192), 0, 2.0),
    ],
)
def test_the_costs_in_docs_streaming(name: str, config: FlowConfig, prompt_tokens: int, limit: float) -> None:
    """Blocks of 16 tokens, 20 s of speech in one utterance, in CPU time."""
    flow, voice = tiny.fill(Flow(config)), voice_of(prompt_tokens)
    stream, costs_ms = MelStream(flow, voice, seed=SEED, streaming=True), []
    for _ in range(32):
        start = time.process_time()
        stream.push(ids_of(16), final=False)
        costs_ms.append(1000 * (time.process_time() - start))
    early, late = median(costs_ms[1:6]), median(costs_ms[-5:])
    print(f"\n| {name} | {early:.0f} | {late:.0f} |", end="")
    assert late / early < limit
