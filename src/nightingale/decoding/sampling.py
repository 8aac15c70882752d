"""Logits to the next speech token, as small steps that are composed in each model family's order.

A step maps logits (vocab,) and the ids seen so far, a boolean row (vocab,), to logits. Rows are numpy arrays:
they are so short that one PyTorch call costs more than the work itself. The order of the steps is audible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nightingale.decoding.philox import uniform
from nightingale.types import Sampling

Logits = NDArray[np.float32]
Seen = NDArray[np.bool_]
Step = Callable[[Logits, Seen], Logits]

GREEDY_BELOW = 1e-5
"""Below this temperature the most likely id is taken: the division would overflow float32."""
MASKED = np.float32(-np.inf)


def guide(logits: Logits, weight: float) -> Logits:
    """Apply classifier-free guidance: (2, vocab) -> (vocab,). A single row passes through."""
    if len(logits) == 1:
        return np.asarray(logits[0])
    conditional, unconditional = logits
    return np.asarray(conditional + np.float32(weight) * (conditional - unconditional))


def repetition_penalty(penalty: float) -> Step:
    """Make every id that was seen less likely, once, however often it was seen."""

    def step(logits: Logits, seen: Seen) -> Logits:
        return np.where(seen, np.where(logits < 0, logits * penalty, logits / penalty), logits)

    return step


def temperature(value: float) -> Step:
    return lambda logits, _: logits / value


def min_p(share: float) -> Step:
    """Drop ids less likely than `share` of the most likely one."""
    reach = math.log(share)
    return lambda logits, _: np.where(logits < logits.max() + reach, MASKED, logits)


def top_k(count: int) -> Step:
    """Keep the `count` most likely ids, and those as likely as the last of them."""

    def step(logits: Logits, _: Seen) -> Logits:
        last = len(logits) - min(count, len(logits))
        return np.where(logits < np.partition(logits, last)[last], MASKED, logits)

    return step


def top_p(mass: float) -> Step:
    """Keep the most likely ids that together hold `mass`, at least one, and those as likely as the last."""

    def step(logits: Logits, _: Seen) -> Logits:
        ascending = np.sort(logits[logits != MASKED])
        if len(ascending) == 0:
            return logits
        # float64, as in backends/cuda/t3/batched_sampling.py: both must cut at the same id.
        likely = np.exp((ascending - ascending[-1]).astype(np.float64))
        unlikely = int(np.count_nonzero(np.cumsum(likely / likely.sum()) <= 1 - mass))
        return np.where(logits < ascending[min(unlikely, len(ascending) - 1)], MASKED, logits)

    return step


def compose_sampler(order: Literal["chatterbox", "turbo"], sampling: Sampling) -> Step:
    """Compose the steps between guidance and the draw. Steps that would change nothing are left out."""
    penalize = [repetition_penalty(sampling.repetition_penalty)] if sampling.repetition_penalty != 1 else []
    cool = [] if sampling.temperature == 1 or is_greedy(sampling) else [temperature(sampling.temperature)]
    cut_min_p = [min_p(sampling.min_p)] if sampling.min_p > 0 else []
    cut_top_k = [top_k(sampling.top_k)] if sampling.top_k > 0 else []
    cut_top_p = [top_p(sampling.top_p)] if sampling.top_p < 1 else []
    if order == "chatterbox":
        steps = [*penalize, *cool, *cut_min_p, *cut_top_k, *cut_top_p]
    else:
        # PARITY: Turbo penalizes last, after the cuts.
        #         tests/decoding/test_sampling.py::test_turbo_penalises_after_it_cuts
        steps = [*cool, *cut_top_k, *cut_top_p, *penalize]

    def sampler(logits: Logits, seen: Seen) -> Logits:
        for step in steps:
            logits = step(logits, seen)
        return logits

    return sampler


def is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature < GREEDY_BELOW


def draw(logits: Logits, key: int | None, number: int) -> int:
    """Sample one id: draw `number` of the Philox stream `key`, or the most likely id if there is no key.

    It is an exponential race: each id arrives after -log(u), with a uniform u of its own for this draw, divided
    by its probability, and the first is drawn. In other words it is the Gumbel-max trick: the argmax of
    logit - log(-log(u)). Two models that sample with the same numbers draw the same id as often as their
    distributions agree, which is what makes drafts effective. backends/cuda/t3/batched_sampling.py draws the same
    ids.
    """
    if not math.isfinite(logits.max()):
        raise ArithmeticError("T3's logits are not finite numbers")
    if key is None:
        return int(logits.argmax())
    left = np.flatnonzero(logits != MASKED)
    waits = -np.log(uniform(key, number, left))
    return int(left[np.argmax(logits[left] - np.log(waits))])
