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

from nightingale.decoding.random import Chances, waits
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
    """Keep the likeliest ids that together hold `mass`, and at least one."""

    def step(scores: Logits, _: Seen) -> Logits:
        left = np.flatnonzero(scores != NEVER)
        ascending = left[np.argsort(scores[left])]
        likely = np.exp(scores[ascending] - scores.max())
        unlikely = np.cumsum(likely / likely.sum()) <= 1 - mass
        kept = scores.copy()
        kept[ascending[:-1][unlikely[:-1]]] = NEVER
        return kept

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


def draw(scores: Logits, chances: Chances | None) -> int:
    """One id: the first in the race over these chances (RaceTape), or the likeliest where there are none.

    The draw happens on the CPU, so that a seed means the same on every device.
    """
    most = scores.max()
    if not math.isfinite(most):
        raise ArithmeticError("T3's scores are not finite numbers")
    if chances is None:
        return int(scores.argmax())
    racing = np.flatnonzero(scores != NEVER)
    likely = np.exp(scores[racing] - most)
    return int(racing[np.argmax(likely / waits(chances[racing]))])
