"""Batched sampling: each row is processed and sampled as on the host."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from parity.tiny import gaussian
from torch import Tensor

from nightingale.backends.cuda.t3.batched_sampling import (
    DecodeState,
    SamplerOrder,
    SlotStart,
    apply_guidance,
    needs_sorting,
    process_logits,
    sample,
)
from nightingale.decoding import sampling as host
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.types import Sampling

VOCAB = 300
OFF = Sampling(temperature=1.0, top_p=1.0, min_p=0.0, top_k=0, repetition_penalty=1.0, cfg_weight=0.0)
REQUESTS = [
    MODEL_DEFAULTS["multilingual"].sampling,
    MODEL_DEFAULTS["turbo"].sampling,
    MODEL_DEFAULTS["wren"].sampling,
    OFF,
    replace(OFF, temperature=0.0, min_p=0.1),
    replace(OFF, top_k=1),
    replace(OFF, top_k=7, top_p=0.5),
    replace(OFF, top_p=1e-6),
    replace(OFF, top_p=0.9, min_p=0.05, repetition_penalty=2.0, temperature=0.3),
]
CPU = torch.device("cpu")


def state_of(requests: list[Sampling], seen: Tensor | None = None, *, vocab: int = VOCAB) -> DecodeState:
    """Return a state with a request in each slot; seen: (slots, vocab)."""
    state = DecodeState.empty(slots=len(requests), rows=1, vocab=vocab, steps=1, device=CPU)
    starts = [SlotStart(slot, sampling, slot, length=0, budget=9) for slot, sampling in enumerate(requests)]
    state.set_parameters(starts)
    return state if seen is None else replace(state, seen=seen)


@pytest.mark.parametrize("order", ["chatterbox", "turbo"])
def test_every_family_processes_logits_as_on_the_host(order: SamplerOrder) -> None:
    logits = 4 * gaussian((len(REQUESTS), VOCAB), 1)
    seen = gaussian((len(REQUESTS), VOCAB), 2) > 1
    processed = process_logits(logits, state_of(REQUESTS, seen), order=order, sorting=True)
    for row, sampling in enumerate(REQUESTS):
        if order == "turbo":
            sampling = replace(sampling, min_p=0.0)
        expected = host.process_logits(logits[row].numpy(), seen[row].numpy(), order, sampling)
        torch.testing.assert_close(
            processed[row], torch.from_numpy(expected), msg=lambda m, s=sampling: f"{s}: {m}"
        )


@pytest.mark.parametrize("order", ["chatterbox", "turbo"])
def test_without_top_k_and_top_p_sorting_changes_nothing(order: SamplerOrder) -> None:
    requests = [s for s in REQUESTS if not needs_sorting(s)]
    logits, seen = gaussian((len(requests), VOCAB), 1), gaussian((len(requests), VOCAB), 2) > 1
    one, other = (
        process_logits(logits, state_of(requests, seen), order=order, sorting=sorting)
        for sorting in (False, True)
    )
    torch.testing.assert_close(one, other)
    assert 2 <= len(requests) < len(REQUESTS)


def test_each_request_has_its_own_guidance() -> None:
    both = torch.tensor([[[1.0, 2.0, 0.0], [0.0, 4.0, 0.0]]]).expand(2, -1, -1)
    assert apply_guidance(both, torch.tensor([0.5, 0.0])).tolist() == [[1.5, 1.0, 0.0], [1.0, 2.0, 0.0]]
    assert apply_guidance(both[:, :1], torch.tensor([0.5, 0.0])).tolist() == [[1.0, 2.0, 0.0]] * 2


def test_samples_follow_the_probabilities() -> None:
    count = 20_000
    logits = torch.tensor([-torch.inf, 0.0, 2.0, -torch.inf, 1.0, -1.0, -torch.inf])
    state = state_of([OFF] * 100, vocab=7)
    state = replace(state, sampled=torch.arange(100))
    tokens = torch.cat(
        [sample(logits.expand(100, -1), replace(state, key=torch.full((100,), 1000 + k))) for k in range(200)]
    )
    shares = torch.bincount(tokens, minlength=7) / count
    # Four standard deviations of the largest share.
    torch.testing.assert_close(shares, torch.softmax(logits, 0), rtol=0, atol=4 * 0.5 / count**0.5)
    assert shares[[0, 3, 6]].tolist() == [0, 0, 0]


def test_greedy_takes_the_most_likely_id() -> None:
    state = state_of([replace(OFF, temperature=0.0)] * 2, vocab=5)
    assert sample(torch.tensor([[0.0, 3, 1, 2, 0], [5.0, 3, 1, 2, 0]]), state).tolist() == [1, 0]


@pytest.mark.parametrize("order", ["chatterbox", "turbo"])
@pytest.mark.parametrize("vocab", [7, VOCAB, 6563])
def test_tokens_are_those_of_the_sampler_on_the_host(order: SamplerOrder, vocab: int) -> None:
    """The same logits, seed and draw number give the same token, however a request samples."""
    requests = [replace(s, min_p=0.0) if order == "turbo" else s for s in REQUESTS]
    state = state_of(requests, vocab=vocab)
    for number in range(60):
        logits = 4 * gaussian((len(requests), vocab), number)
        seen = gaussian((len(requests), vocab), 1000 + number) > 1
        state = replace(state, seen=seen, sampled=torch.full((len(requests),), number))
        tokens = sample(process_logits(logits, state, order=order, sorting=True), state).tolist()
        for row, sampling in enumerate(requests):
            left = host.process_logits(logits[row].numpy(), seen[row].numpy(), order, sampling)
            key = None if host.is_greedy(sampling) else row
            assert tokens[row] == host.draw(left, key, number), f"{sampling}, draw {number}"
