"""A streamed flow in graphs renders the blocks of the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
import torch
from backends.watching import HostWatch
from parity.tiny import TINY_FLOW, TINY_MEANFLOW, fill, gaussian, ids
from torch import Tensor

from nightingale.backends.cuda.flow.flow_blocks import FlowBlocks
from nightingale.backends.cuda.flow.flow_steps import FlowSteps, VoicePromptCache, cache_prompt
from nightingale.backends.cuda.random import normal
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.s3gen.flow import Flow, FlowState, render_block

PROMPT, CACHED, CONTEXT = 9, 6, 4
VOICE_KEY, KEY = torch.tensor([7]), torch.tensor([8])
BLOCKS = [(CACHED, 7), (9, 10), (15, 6)]
"""First token and tokens; a block begins CONTEXT tokens before the end of the previous one."""


@pytest.fixture(params=["guided", "meanflow"])
def flow(request: pytest.FixtureRequest) -> Flow:
    return fill(Flow(TINY_FLOW if request.param == "guided" else TINY_MEANFLOW)).double()


def inputs_of(flow: Flow) -> tuple[Tensor, Tensor, Tensor]:
    """Return all ids, the prompt's mel, and the speaker."""
    speaker = gaussian((1, flow.config.speaker_width), 3).double()
    return ids(PROMPT + 20, 1), gaussian((1, 80, 2 * PROMPT), 2).double(), speaker


def noise_of(key: Tensor, start: int, tokens: int) -> Tensor:
    return normal(key, torch.tensor([2 * start]), 2 * tokens, 80).double()


@torch.inference_mode()
def reference(flow: Flow) -> list[Tensor]:
    tokens, mel, speaker = inputs_of(flow)
    _, past = render_block(
        flow,
        tokens[:, :PROMPT],
        lookahead=3,
        prompt_mel=mel[..., : 2 * CACHED],
        speaker=speaker,
        noise=noise_of(VOICE_KEY, 0, CACHED),
        past=None,
    )
    blocks = []
    for number, (start, count) in enumerate(BLOCKS, start=1):
        ahead = 0 if number == len(BLOCKS) else 3
        rendered, past = render_block(
            flow,
            tokens[:, start : start + count + ahead],
            lookahead=ahead,
            prompt_mel=mel[..., 2 * start : 2 * (start + count)],
            speaker=speaker,
            noise=noise_of(KEY, start, count),
            past=past,
            advance=Fraction(count - CONTEXT, count),
            store=False,
        )
        assert isinstance(past, FlowState)
        blocks.append(rendered)
    return blocks


@dataclass
class Stream:
    """One utterance and the blocks rendered so far."""

    key: Tensor
    conv_state: Tensor
    mels: list[Tensor]


def push(
    flow: Flow, blocks: FlowBlocks, prompt: VoicePromptCache, number: int, streams: list[Stream]
) -> None:
    """Render block `number` of each stream in one batch; the last one is padded to a larger graph."""
    tokens, mel, speaker = (t.to(blocks.steps.device) for t in inputs_of(flow))
    start, count = BLOCKS[number]
    final = number == len(BLOCKS) - 1
    size = 10 if final else count
    given = torch.zeros(len(streams), size + 3, dtype=torch.int64, device=tokens.device)
    length = count if final else count + 3
    given[:, :length] = tokens[:, start : start + length]
    cond = torch.zeros(len(streams), 80, 2 * size, dtype=mel.dtype, device=mel.device)
    prompt_mel = mel[..., 2 * start : 2 * (start + count)]
    cond[..., : prompt_mel.shape[2]] = prompt_mel
    many = len(streams)
    rendered, conv_state = blocks(
        prompt,
        given,
        lengths=torch.full((many,), length, device=mel.device),
        cond=cond,
        speaker=speaker.expand(many, -1),
        key=torch.cat([stream.key for stream in streams]).to(mel.device),
        first_frame=torch.full((many,), 2 * start, device=mel.device),
        conv_state=torch.cat([stream.conv_state for stream in streams]),
    )
    for row, stream in enumerate(streams):
        stream.mels.append(rendered[row : row + 1, :, : 2 * count].clone())
        stream.conv_state = conv_state[row : row + 1].clone()


def blocks_of(flow: Flow, buckets: tuple[int, ...] = (CACHED,)) -> tuple[FlowBlocks, VoicePromptCache]:
    steps = FlowSteps(flow)
    tokens, mel, speaker = inputs_of(flow)
    prompt = cache_prompt(steps, tokens[0, :PROMPT], mel[0].T, speaker[0], key=int(VOICE_KEY))
    return FlowBlocks(steps, context=CONTEXT, tokens=(7, 10), batches=(1, 4), prompts=buckets), prompt


def render_all(flow: Flow, blocks: FlowBlocks, prompt: VoicePromptCache, keys: list[Tensor]) -> list[Stream]:
    streams = [Stream(key, prompt.conv_state, []) for key in keys]
    for number in range(len(BLOCKS)):
        push(flow, blocks, prompt, number, streams)
    return streams


@pytest.mark.parametrize("bucket", [CACHED, CACHED + 5], ids=["as long as the prompt", "longer"])
def test_each_block_is_that_of_the_reference(flow: Flow, bucket: int) -> None:
    blocks, prompt = blocks_of(flow, (bucket,))
    expected = reference(flow)
    for _ in range(2):  # an utterance, and another after it
        for one, other in zip(render_all(flow, blocks, prompt, [KEY])[0].mels, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_each_utterance_of_a_batch_is_rendered_as_alone(flow: Flow) -> None:
    blocks, prompt = blocks_of(flow, (CACHED + 1,))
    for one, other in zip(
        render_all(flow, blocks, prompt, [VOICE_KEY, KEY, KEY + 1])[1].mels, reference(flow), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_another_voice_in_between_changes_nothing(flow: Flow) -> None:
    blocks, prompt = blocks_of(flow, (CACHED + 5,))
    tokens, mel, speaker = inputs_of(flow)
    other = mel[0].repeat(1, 2)[:, :22].T
    other_prompt = cache_prompt(blocks.steps, tokens[0, 3:14], other, -speaker[0], key=int(KEY))
    stream = Stream(KEY, prompt.conv_state, [])
    for number in range(len(BLOCKS)):
        push(flow, blocks, prompt, number, [stream])
        push(flow, blocks, other_prompt, 1, [Stream(KEY, other_prompt.conv_state, [])])
    for one, other in zip(stream.mels, reference(flow), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_the_host_reads_nothing(flow: Flow) -> None:
    blocks, prompt = blocks_of(flow)
    push(flow, blocks, prompt, 0, [Stream(KEY, prompt.conv_state, [])])
    tokens, _, speaker = inputs_of(flow)
    ten, none, twelve = torch.tensor([10]), torch.tensor([0]), torch.tensor([12])
    cond = torch.zeros(1, 80, 14, dtype=torch.float64)
    with torch.no_grad(), HostWatch() as watch:
        blocks._render(
            blocks._buffers[CACHED],
            prompt.shapes,
            CACHED,
            tokens[:, :10],
            ten,
            none,
            cond,
            speaker,
            KEY,
            twelve,
            prompt.conv_state,
        )
    assert not watch.found


def test_a_block_of_another_size_is_refused(flow: Flow) -> None:
    blocks, prompt = blocks_of(flow)
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ConfigError, match="no graph was captured"):
        blocks(prompt, torch.zeros(1, 11, dtype=torch.int64), lengths=one, cond=one, speaker=one, key=one,
               first_frame=one, conv_state=one)  # fmt: skip


def test_a_block_causal_flow_is_refused(flow: Flow) -> None:
    causal = fill(Flow(replace(flow.config, block_causal=True)))
    with pytest.raises(ConfigError, match="grows with each block"):
        FlowBlocks(FlowSteps(causal), context=4, tokens=(7,), batches=(1,))


@pytest.mark.requires_cuda
def test_the_graphs_give_the_blocks_of_the_reference(flow: Flow) -> None:
    expected = reference(flow)
    blocks, prompt = blocks_of(flow.cuda(), (CACHED + 5,))
    blocks.capture(prompt)
    streams = render_all(flow, blocks, prompt, [KEY, VOICE_KEY])
    for one, other in zip(streams[0].mels, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=1e-6)
    assert {graph.mode for graph in blocks._graphs.values()} == {"graph"}
