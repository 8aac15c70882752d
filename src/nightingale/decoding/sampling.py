"""Logits to the next speech token, as small steps composed in each family's own, audible, order.

A step takes scores (vocabulary,) and the ids seen so far as a boolean row (vocabulary,), and gives scores.
They are arrays of numpy: a row is so short that a call of torch costs more than its work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nightingale.decoding.philox import uniform
from nightingale.types import Sampling

Logits = NDArray[np.float32]
Seen = NDArray[np.bool_]
Step = Callable[[Logits, Seen], Logits]

COLDEST = 1e-5
"""Below this temperature the likeliest id is taken: the division would leave float32, and change nothing."""
NEVER = np.float32(-np.inf)


def guide(scores: Tensor, weight: float) -> Tensor:
    """Classifier-free guidance: (2, vocabulary), told and untold -> (vocabulary,). One row passes through."""
    if len(scores) == 1:
        return scores[0]
    told, untold = scores[0], scores[1]
    return told + weight * (told - untold)


def repetition_penalty(penalty: float) -> Step:
    """Make every id seen less likely, once, however often it was seen."""

    def step(scores: Logits, seen: Seen) -> Logits:
        return np.where(seen, np.where(scores < 0, scores * penalty, scores / penalty), scores)

    return step


def temperature(value: float) -> Step:
    return lambda scores, _: scores / value


def min_p(share: float) -> Step:
    """Drop ids less likely than `share` of the likeliest."""
    reach = math.log(share)
    return lambda scores, _: np.where(scores < scores.max() + reach, NEVER, scores)


def top_k(count: int) -> Step:
    """Keep the `count` likeliest ids, and those as likely as the last of them."""

    def step(scores: Logits, _: Seen) -> Logits:
        last = len(scores) - min(count, len(scores))
        return np.where(scores < np.partition(scores, last)[last], NEVER, scores)

    return step


def top_p(mass: float) -> Step:
    """Keep the likeliest ids that together hold `mass`, at least one, and those as likely as the last."""

    def step(scores: Logits, _: Seen) -> Logits:
        ascending = np.sort(scores[scores != NEVER])
        if len(ascending) == 0:
            return scores
        # float64, as in backends/cuda/batched_sampling.py: both must cut at the same id.
        likely = np.exp((ascending - ascending[-1]).astype(np.float64))
        unlikely = int(np.count_nonzero(np.cumsum(likely / likely.sum()) <= 1 - mass))
        return np.where(scores < ascending[min(unlikely, len(ascending) - 1)], NEVER, scores)

    return step


def compose_sampler(order: Literal["chatterbox", "turbo"], sampling: Sampling) -> Step:
    """The steps between guidance and the draw. Steps that would change nothing are left out."""
    penalise = [repetition_penalty(sampling.repetition_penalty)] if sampling.repetition_penalty != 1 else []
    cool = [] if sampling.temperature == 1 or is_greedy(sampling) else [temperature(sampling.temperature)]
    cut_min_p = [min_p(sampling.min_p)] if sampling.min_p > 0 else []
    cut_top_k = [top_k(sampling.top_k)] if sampling.top_k > 0 else []
    cut_top_p = [top_p(sampling.top_p)] if sampling.top_p < 1 else []
    if order == "chatterbox":
        steps = [*penalise, *cool, *cut_min_p, *cut_top_k, *cut_top_p]
    else:
        # PARITY: Turbo penalises last, after the cuts.
        #         tests/engine/test_sampling.py::test_turbo_penalises_after_it_cuts
        steps = [*cool, *cut_top_k, *cut_top_p, *penalise]

    def sampler(scores: Logits, seen: Seen) -> Logits:
        for step in steps:
            scores = step(scores, seen)
        return scores

    return sampler


def is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature < COLDEST


def draw(scores: Logits, key: int | None, number: int) -> int:
    """Sample one id: draw `number` of the stream with this key, or the likeliest id if there is no key.

    It is an exponential race: each id arrives after -log(u), u uniform and its own for this draw, divided by
    its probability, and the first is drawn. That is the Gumbel-max trick: argmax of logit - log(-log(u)).
    Two models that sample with the same numbers draw the same id as often as their probabilities agree, so a
    draft samples as its target does. backends/cuda/batched_sampling.py draws the same ids.
    """
    if not math.isfinite(scores.max()):
        raise ArithmeticError("T3's scores are not finite numbers")
    if key is None:
        return int(scores.argmax())
    left = np.flatnonzero(scores != NEVER)
    waits = -np.log(uniform(key, number, left))
    return int(left[np.argmax(scores[left] - np.log(waits))])
