"""Sampling for all rows at once: row by row the plain steps, and draws spread as they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from parity.tiny import gaussian

from nightingale.backends.cuda.batched_sampling import Knobs, Order, draw, guide, needs_sorting, shape_scores
from nightingale.decoding import sampling as plain
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


def knobs_of(requests: list[Sampling], vocab: int = VOCAB) -> Knobs:
    knobs = Knobs.off(len(requests), vocab, CPU)
    for slot, sampling in enumerate(requests):
        knobs.set(slot, sampling, key=slot, vocab=vocab)
    return knobs


@pytest.mark.parametrize("order", ["chatterbox", "turbo"])
def test_every_family_shapes_scores_as_its_plain_twin(order: Order) -> None:
    scores = 4 * gaussian((len(REQUESTS), VOCAB), 1)
    seen = gaussian((len(REQUESTS), VOCAB), 2) > 1
    shaped = shape_scores(scores, seen, knobs_of(REQUESTS), order=order, sorting=True)
    for row, sampling in enumerate(REQUESTS):
        if order == "turbo":
            sampling = replace(sampling, min_p=0.0)
        expected = plain.compose_sampler(order, sampling)(scores[row].numpy(), seen[row].numpy())
        torch.testing.assert_close(
            shaped[row], torch.from_numpy(expected), msg=lambda m, s=sampling: f"{s}: {m}"
        )


@pytest.mark.parametrize("order", ["chatterbox", "turbo"])
def test_without_a_cut_by_rank_there_is_nothing_to_sort(order: Order) -> None:
    requests = [s for s in REQUESTS if not needs_sorting(s)]
    scores, seen = gaussian((len(requests), VOCAB), 1), gaussian((len(requests), VOCAB), 2) > 1
    one, other = (
        shape_scores(scores, seen, knobs_of(requests), order=order, sorting=sorting)
        for sorting in (False, True)
    )
    torch.testing.assert_close(one, other)
    assert 2 <= len(requests) < len(REQUESTS)


def test_guidance_is_each_requests_own() -> None:
    both = torch.tensor([[[1.0, 2.0, 0.0], [0.0, 4.0, 0.0]]]).expand(2, -1, -1)
    assert guide(both, torch.tensor([0.5, 0.0])).tolist() == [[1.5, 1.0, 0.0], [1.0, 2.0, 0.0]]
    assert guide(both[:, :1], torch.tensor([0.5, 0.0])).tolist() == [[1.0, 2.0, 0.0]] * 2


def test_draws_follow_the_probabilities() -> None:
    draws = 20_000
    scores = torch.tensor([-torch.inf, 0.0, 2.0, -torch.inf, 1.0, -1.0, -torch.inf])
    knobs = knobs_of([OFF], 7)
    drawn = torch.cat(
        [draw(scores.expand(100, -1), _wide(knobs, 100, k), torch.arange(100)) for k in range(200)]
    )
    shares = torch.bincount(drawn, minlength=7) / draws
    # Four standard deviations of the largest share.
    torch.testing.assert_close(shares, torch.softmax(scores, 0), rtol=0, atol=4 * 0.5 / draws**0.5)
    assert shares[[0, 3, 6]].tolist() == [0, 0, 0]


def _wide(knobs: Knobs, rows: int, key: int) -> Knobs:
    wide = Knobs(**{name: value.expand(rows).clone() for name, value in knobs.tensors().items()})
    wide.key[:] = 1000 + key
    return wide


def test_greedy_takes_the_likeliest() -> None:
    knobs = knobs_of([replace(OFF, temperature=0.0)] * 2, 5)
    assert draw(
        torch.tensor([[0.0, 3, 1, 2, 0], [5.0, 3, 1, 2, 0]]), knobs, torch.tensor([0, 1])
    ).tolist() == [1, 0]


@pytest.mark.parametrize("order", ["chatterbox", "turbo"])
@pytest.mark.parametrize("vocab", [7, VOCAB, 6563])
def test_tokens_are_those_of_the_sampler_on_the_host(order: Order, vocab: int) -> None:
    """The same logits, seed and draw number give the same token, however a request samples."""
    requests = [replace(s, min_p=0.0) if order == "turbo" else s for s in REQUESTS]
    knobs = knobs_of(requests, vocab)
    for number in range(60):
        scores = 4 * gaussian((len(requests), vocab), number)
        seen = gaussian((len(requests), vocab), 1000 + number) > 1
        shaped = shape_scores(scores, seen, knobs, order=order, sorting=True)
        tokens = draw(shaped, knobs, torch.full((len(requests),), number)).tolist()
        for row, sampling in enumerate(requests):
            left = plain.compose_sampler(order, sampling)(scores[row].numpy(), seen[row].numpy())
            key = None if plain.is_greedy(sampling) else row
            assert tokens[row] == plain.draw(left, key, number), f"{sampling}, draw {number}"
