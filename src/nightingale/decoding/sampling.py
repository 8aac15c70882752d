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

from nightingale.types import Sampling

Logits = NDArray[np.float32]
Seen = NDArray[np.bool_]
Step = Callable[[Logits, Seen], Logits]
Uniforms = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""Ids -> one uniform random number in (0, 1) for each of them."""

GREEDY_BELOW = 1e-5
"""Below this temperature the most likely id is taken: the division would overflow float32."""
MASKED = np.float32(-np.inf)


def guide(logits: Logits, weight: float) -> Logits:
    """Apply classifier-free guidance: (2, vocab) -> (vocab,). A single row passes through."""
    if len(logits) == 1:
        return logits[0]
    conditional, unconditional = logits
    return conditional + np.float32(weight) * (conditional - unconditional)


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
    """Keep the most likely ids that together hold `mass`, and at least one."""

    def step(logits: Logits, _: Seen) -> Logits:
        left = np.flatnonzero(logits != MASKED)
        ascending = left[np.argsort(logits[left])]
        likely = np.exp(logits[ascending] - logits.max())
        unlikely = np.cumsum(likely / likely.sum()) <= 1 - mass
        kept = logits.copy()
        kept[ascending[:-1][unlikely[:-1]]] = MASKED
        return kept

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


def draw(logits: Logits, uniforms: Uniforms | None) -> int:
    """Return one id: the winner of an exponential race, or the most likely id where there are no uniforms.

    Each id arrives after an exponential wait divided by its probability, and the first is drawn; this samples
    from the softmax (Gumbel-max in other words). Two models that race over the same random numbers draw
    the same id as often as their distributions agree, which is what makes drafts exact.
    """
    highest = logits.max()
    if not math.isfinite(highest):
        raise ArithmeticError("T3's logits are not finite numbers")
    if uniforms is None:
        return int(logits.argmax())
    racing = np.flatnonzero(logits != MASKED)
    likely = np.exp(logits[racing] - highest)
    waits = (-np.log(uniforms(racing))).astype(np.float32)
    return int(racing[np.argmax(likely / waits)])
