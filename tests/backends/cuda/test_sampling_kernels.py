"""Triton's kernels sample the tokens of the library calls. Without a GPU they are interpreted."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from backends.cuda.test_batched_sampling import REQUESTS
from parity.tiny import TINY_GPT2, TINY_LLAMA, fill, gaussian

from nightingale.backends.cuda.t3 import batched_sampling
from nightingale.backends.cuda.t3.batched_sampling import INVALID_LOGITS, DecodeState, SamplerOrder, SlotStart
from nightingale.backends.cuda.t3.packed_network import PackedT3
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH
from nightingale.models.chatterbox.t3.model import T3

pytestmark = pytest.mark.thorough  # Triton's interpreter takes seconds for a kernel

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
VOCAB = 6600
"""It has the start and the stop token."""
STATE = ("seen", "sampled", "running", "recent", "cursor")
"""Tensors that a step of sampling changes, besides the lengths."""


@pytest.fixture(scope="module")
def kernels() -> Any:
    from nightingale.backends.cuda.t3 import sampling_kernels

    return sampling_kernels


def state_of(rows: int, order: SamplerOrder) -> DecodeState:
    """Return a slot for each request, with something said already, and one that does not run."""
    state = DecodeState.empty(slots=len(REQUESTS), rows=rows, vocab=VOCAB, steps=8, device=DEVICE)
    started = []
    for slot, sampling in enumerate(REQUESTS):
        guided = replace(sampling, cfg_weight=0.1 * slot, **({"min_p": 0.0} if order == "turbo" else {}))
        started.append(SlotStart(slot, guided, slot - 3, length=7 + slot, budget=3 if slot == 1 else 100))
    state.start(started)
    state.seen |= (gaussian((len(REQUESTS), VOCAB), 2) > 1).to(DEVICE)
    state.running[4] = False
    return state


def by_library(state: DecodeState, order: SamplerOrder, cuts: bool) -> None:
    logits = batched_sampling.apply_guidance(state.logits, state.cfg_weight)
    processed = batched_sampling.process_logits(logits, state, order=order, sorting=cuts)
    tokens = batched_sampling.sample(processed, state)
    state.append(tokens, ~processed.amax(dim=-1).isfinite(), order)


def draw_and_append(kernels: Any, state: DecodeState, order: SamplerOrder, cuts: bool) -> None:
    """Sample with the kernels, which embed the tokens too."""
    kernels.append(tiny_t3("llama"), kernels.draw(state, order=order, cuts=cuts), state, None, order=order)


@cache
def tiny_t3(kind: str) -> T3:
    return fill(T3(TINY_LLAMA if kind == "llama" else TINY_GPT2)).to(DEVICE)


@pytest.mark.parametrize(("order", "rows"), [("chatterbox", 2), ("chatterbox", 1), ("turbo", 1)])
@pytest.mark.parametrize("cuts", [True, False])
def test_tokens_and_state_are_those_of_the_library_calls(
    kernels: Any, order: SamplerOrder, rows: int, cuts: bool
) -> None:
    ours, theirs = state_of(rows, order), state_of(rows, order)
    for step in range(3):
        logits = 4 * gaussian((len(REQUESTS), rows, VOCAB), step).to(DEVICE)
        logits[2, 0, STOP_SPEECH] = logits[3, 0, START_SPEECH] = 50.0 if step in (0, 2) else 0.0
        ours.logits.copy_(logits)
        theirs.logits.copy_(logits)
        draw_and_append(kernels, ours, order, cuts)
        by_library(theirs, order, cuts)
        for name in STATE:
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert not theirs.running[1], "its budget is spent"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("order", ["chatterbox", "turbo"])
def test_logits_that_are_not_finite_end_the_utterance(kernels: Any, order: SamplerOrder) -> None:
    state = state_of(1, order)
    state.logits.zero_()
    state.logits[0] = torch.nan
    state.logits[1, 0, 100] = torch.nan
    state.logits[2] = -torch.inf
    state.logits[3, 0, 1500] = torch.inf
    draw_and_append(kernels, state, order, False)
    assert state.recent[0, :4].tolist() == [INVALID_LOGITS] * 4
    assert not state.running[:4].any()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@torch.inference_mode()
def test_embeddings_are_those_of_the_library_calls(kernels: Any, kind: str) -> None:
    t3, state = tiny_t3(kind), state_of(2, "chatterbox")
    packed = PackedT3(copy.deepcopy(t3), positions=64)
    state.logits.copy_(4 * gaussian(tuple(state.logits.shape), 1))
    before = state.lengths.clone()
    drawn = kernels.draw(state, order="chatterbox", cuts=False)
    x, lengths = kernels.append(t3, drawn, state, packed.position_embeddings, order="chatterbox")
    running = state.recent[0] >= 0
    given = (state.recent[0].clamp(min=0), state.sampled, before)
    expected = packed.embed(*(value.repeat_interleave(2) for value in given))
    assert torch.equal(x[running.repeat_interleave(2)], expected[running.repeat_interleave(2)])
    assert torch.equal(lengths, before.repeat_interleave(2))
    assert torch.equal(state.lengths, before + state.running)
    assert state.cursor.item() == 1
