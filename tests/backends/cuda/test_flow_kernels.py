"""The flow's Triton kernels: piece for piece what the library's make of it, and what they leave for the next.

With a GPU they are compiled; without one they run in Triton's interpreter, if Triton is installed at all.
"""

from __future__ import annotations


import pytest
import torch
from parity.tiny import TINY_FLOW, TINY_MEANFLOW, fill, gaussian, ids

from nightingale.backends.cuda.flow import FlowSteps
from nightingale.backends.cuda.flow_blocks import By, FlowPieces, hear_prompt
from nightingale.backends.cuda.graphs import How
from nightingale.models.chatterbox.s3gen.flow import Flow

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
CONTEXT, TOKENS = 4, 9
BY: tuple[By, ...] = ("triton", "library")


@torch.inference_mode()
def piece_of(steps: FlowSteps, lengths: list[int], *, by: By, how: How) -> tuple[torch.Tensor, ...]:
    flow, many = steps.flow, len(lengths)
    speaker = gaussian((1, flow.config.speaker_width), 3).to(DEVICE)
    prompt, mel = ids(8, 1).to(DEVICE), gaussian((1, 80, 16), 2).to(DEVICE)
    heard = hear_prompt(steps, prompt, mel, speaker, torch.tensor([7], device=DEVICE))
    # A place of seven for the five tokens heard: the far end must not be seen.
    pieces = FlowPieces(steps, context=CONTEXT, tokens=(TOKENS,), batches=(1, 2), known=(7,), how=how, by=by)
    pieces._load(heard)
    for buffer in pieces._buffers[7]:
        buffer[:, :, : -heard.tokens * buffer.shape[2] // 7] = 100.0
    assert pieces.by == by
    return pieces(
        heard,
        torch.stack([ids(TOKENS + 3, seed)[0] for seed in range(many)]).to(DEVICE),
        torch.tensor(lengths, device=DEVICE),
        cond=gaussian((many, 80, 2 * TOKENS), 5).to(DEVICE),
        speaker=speaker.expand(many, -1),
        key=torch.arange(many, device=DEVICE),
        first_frame=torch.full((many,), 10, device=DEVICE),
        carried=heard.carried.expand(many, -1) + 0.1,
    )


def check_piece(guided: bool, lengths: list[int]) -> None:
    steps = FlowSteps(fill(Flow(TINY_FLOW if guided else TINY_MEANFLOW)).to(DEVICE), steps=2)
    # Left alone, cuDNN rounds the inputs of a convolution in float32 to ten bits; ours are not rounded.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        found = [piece_of(steps, lengths, by=by, how="eager") for by in BY]
    for ours, theirs in zip(*found, strict=True):
        assert ours.shape == theirs.shape
        for row, length in enumerate(lengths):
            real = 2 * min(length, TOKENS) if ours.dim() == 3 else None  # beyond the end nobody listens
            torch.testing.assert_close(ours[row, ..., :real], theirs[row, ..., :real], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize("lengths", [[12], [12, 7]], ids=["one", "two"])
def test_a_piece_is_the_librarys(
    guided: bool, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nightingale.backends.cuda import flow_fused

    if not CUDA and (guided or len(lengths) > 1):
        # The interpreter takes as long for a small block as for a large one.
        monkeypatch.setattr(flow_fused, "MANY_ROWS", 0)
    check_piece(guided, lengths)


@pytest.mark.requires_cuda
@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize("lengths", [[12], [12, 7]], ids=["one", "two"])
def test_on_a_gpu_a_piece_is_the_librarys_and_a_recorded_one_the_same_bits_each_time(
    guided: bool, lengths: list[int]
) -> None:
    check_piece(guided, lengths)
    flow = fill(Flow(TINY_FLOW if guided else TINY_MEANFLOW)).to(DEVICE)
    steps = FlowSteps(flow, steps=2, precision=torch.bfloat16)
    expected = piece_of(steps, lengths, by="triton", how="eager")
    for _ in range(5):
        recorded = piece_of(steps, lengths, by="triton", how="graph")
        assert all(torch.equal(one, other) for one, other in zip(recorded, expected, strict=True))
