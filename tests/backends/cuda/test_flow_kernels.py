"""The flow's Triton kernels render the blocks of library calls, and save the same state.

With a GPU they are compiled; without one they run in Triton's interpreter.
"""

from __future__ import annotations

import pytest
import torch
from parity.tiny import TINY_FLOW, TINY_MEANFLOW, fill, gaussian, ids

from nightingale.backends.cuda.flow.flow_blocks import FlowBlocks
from nightingale.backends.cuda.flow.flow_steps import FlowSteps, cache_prompt
from nightingale.backends.cuda.graphs import GraphMode
from nightingale.backends.cuda.triton_support import KernelChoice
from nightingale.models.chatterbox.s3gen.flow import Flow

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
CONTEXT, TOKENS = 4, 9
CHOICES: tuple[KernelChoice, ...] = ("triton", "library")


@torch.inference_mode()
def block_of(
    steps: FlowSteps, lengths: list[int], *, kernels: KernelChoice, mode: GraphMode
) -> tuple[torch.Tensor, ...]:
    flow, utterances = steps.flow, len(lengths)
    speaker = gaussian((1, flow.config.speaker_width), 3)
    prompt = cache_prompt(steps, ids(8, 1)[0], gaussian((1, 80, 16), 2)[0].T, speaker[0], key=7)
    speaker = speaker.to(DEVICE)
    # A bucket of seven for the five tokens that are cached: the padding must not be seen.
    sizes = {"tokens": (TOKENS,), "batches": (1, 2), "prompts": (7,)}
    blocks = FlowBlocks(steps, context=CONTEXT, **sizes, mode=mode, kernels=kernels)
    blocks._load(prompt)
    for buffer in blocks._buffers[7]:
        buffer[:, :, : -prompt.tokens * buffer.shape[2] // 7] = 100.0
    assert blocks.kernels.name == kernels
    return blocks(
        prompt,
        torch.stack([ids(TOKENS + 3, seed)[0] for seed in range(utterances)]).to(DEVICE),
        lengths=torch.tensor(lengths, device=DEVICE),
        cond=gaussian((utterances, 80, 2 * TOKENS), 5).to(DEVICE),
        speaker=speaker.expand(utterances, -1),
        key=torch.arange(utterances, device=DEVICE),
        first_frame=torch.full((utterances,), 10, device=DEVICE),
        conv_state=prompt.conv_state.expand(utterances, -1) + 0.1,
    )


def check_block(guided: bool, lengths: list[int]) -> None:
    # The interpreter is slow: two utterances take one step there, one utterance takes two.
    count = 2 if CUDA or len(lengths) == 1 else 1
    steps = FlowSteps(fill(Flow(TINY_FLOW if guided else TINY_MEANFLOW)).to(DEVICE), steps=count)
    # Left alone, cuDNN rounds the inputs of a convolution in float32 to ten bits; ours are not rounded.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        found = [block_of(steps, lengths, kernels=kernels, mode="eager") for kernels in CHOICES]
    for ours, theirs in zip(*found, strict=True):
        assert ours.shape == theirs.shape
        for row, length in enumerate(lengths):
            real = 2 * min(length, TOKENS) if ours.dim() == 3 else None  # beyond the end is padding
            torch.testing.assert_close(ours[row, ..., :real], theirs[row, ..., :real], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize("lengths", [[12], [12, 7]], ids=["one", "two"])
def test_a_block_is_that_of_library_calls(
    guided: bool, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nightingale.backends.cuda.flow import fused_estimator

    if not CUDA and (guided or len(lengths) > 1):
        # The interpreter takes as long for a small block as for a large one.
        monkeypatch.setattr(fused_estimator, "MANY_ROWS", 0)
    check_block(guided, lengths)


@pytest.mark.requires_cuda
@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize("lengths", [[12], [12, 7]], ids=["one", "two"])
def test_on_a_gpu_a_block_is_that_of_library_calls_and_a_graph_repeats_its_bits(
    guided: bool, lengths: list[int]
) -> None:
    check_block(guided, lengths)
    flow = fill(Flow(TINY_FLOW if guided else TINY_MEANFLOW)).to(DEVICE)
    steps = FlowSteps(flow, steps=2, precision=torch.bfloat16)
    expected = block_of(steps, lengths, kernels="triton", mode="eager")
    for _ in range(5):
        captured = block_of(steps, lengths, kernels="triton", mode="graph")
        assert all(torch.equal(one, other) for one, other in zip(captured, expected, strict=True))
