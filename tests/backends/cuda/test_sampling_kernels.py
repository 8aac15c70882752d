"""Triton's kernels sample the tokens of the library calls. Without a GPU they are interpreted."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from backends.cuda.test_batched_sampling import REQUESTS
from parity.tiny import gaussian

from nightingale.backends.cuda.t3 import batched_sampling
from nightingale.backends.cuda.t3.batched_sampling import INVALID_LOGITS, DecodeState, SamplerOrder
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
VOCAB = 6600
"""It has the start and the stop token."""
STATE = ("seen", "sampled", "running", "recent")
"""Tensors that a draw changes, besides the cursor."""


@pytest.fixture(scope="module")
def kernels() -> Any:
    from nightingale.backends.cuda.t3 import sampling_kernels

    return sampling_kernels


def state_of(rows: int, order: SamplerOrder) -> DecodeState:
    """Return a slot for each request, with something said already, and one that does not run."""
    state = DecodeState.empty(slots=len(REQUESTS), rows=rows, vocab=VOCAB, steps=8, device=DEVICE)
    for slot, sampling in enumerate(REQUESTS):
        guided = replace(sampling, cfg_weight=0.1 * slot, **({"min_p": 0.0} if order == "turbo" else {}))
        state.start(slot, guided, key=slot - 3, length=7 + slot, budget=3 if slot == 1 else 100)
    state.seen |= (gaussian((len(REQUESTS), VOCAB), 2) > 1).to(DEVICE)
    state.running[4] = False
    return state


def by_library(state: DecodeState, order: SamplerOrder, cuts: bool) -> torch.Tensor:
    logits = batched_sampling.apply_guidance(state.logits, state.cfg_weight)
    processed = batched_sampling.process_logits(logits, state, order=order, sorting=cuts)
    tokens = batched_sampling.sample(processed, state)
    state.append(tokens, ~processed.amax(dim=-1).isfinite(), order)
    return tokens


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
        tokens = kernels.sample(ours, order=order, cuts=cuts)
        assert tokens.tolist() == by_library(theirs, order, cuts).tolist()
        ours.cursor.add_(1)  # `embed` does
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
    tokens = kernels.sample(state, order=order, cuts=False).tolist()
    assert all(0 <= token < VOCAB for token in tokens)
    assert state.recent[0, :4].tolist() == [INVALID_LOGITS] * 4
    assert not state.running[:4].any()


@pytest.mark.parametrize("family", ["multilingual", "turbo"])
def test_embeddings_are_those_of_the_library_calls(kernels: Any, family: str) -> None:
    from parity.tiny import TINY_GPT2, TINY_LLAMA, fill

    from nightingale.backends.cuda.t3.packed_network import PackedT3
    from nightingale.models.chatterbox.t3.model import T3

    t3 = fill(T3(TINY_LLAMA if family == "multilingual" else TINY_GPT2)).to(DEVICE)
    packed = PackedT3(copy.deepcopy(t3), positions=64)
    state = state_of(2, "chatterbox")
    tokens = torch.arange(len(REQUESTS), device=DEVICE) + 5
    with torch.inference_mode():
        x, lengths = kernels.embed(t3, tokens, state, packed.position_embeddings)
        twice = [value.repeat_interleave(2) for value in (tokens, state.sampled, state.lengths)]
        assert torch.equal(x, packed.embed(*twice))
    assert torch.equal(lengths, twice[2])
    assert state.cursor.item() == 1
