"""Sample the next speech token from logits, in small steps whose order depends on the model family.

A step maps logits (vocab,) to logits. Rows are numpy arrays: they are so short that one PyTorch call costs
more than the work itself. The order of the steps is audible.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nightingale.decoding.philox import uniform
from nightingale.types import Sampling

Logits = NDArray[np.float32]
Seen = NDArray[np.bool_]

GREEDY_BELOW = 1e-5
"""Below this temperature the most likely id is taken: the division would overflow float32."""
MASKED = np.float32(-np.inf)


def guide(logits: Logits, weight: float) -> Logits:
    """Apply classifier-free guidance: (2, vocab) -> (vocab,). A single row passes through."""
    if len(logits) == 1:
        return np.asarray(logits[0])
    conditional, unconditional = logits
    return np.asarray(conditional + np.float32(weight) * (conditional - unconditional))


def penalize_repetition(logits: Logits, seen: Seen, penalty: float) -> Logits:
    """Make every id that was seen less likely, once, however often it was seen."""
    return np.where(seen, np.where(logits < 0, logits * penalty, logits / penalty), logits)


def min_p(logits: Logits, share: float) -> Logits:
    """Mask ids less likely than `share` of the most likely one."""
    return np.where(logits < logits.max() + math.log(share), MASKED, logits)


def top_k(logits: Logits, count: int) -> Logits:
    """Keep the `count` most likely ids, and those as likely as the last of them."""
    last = len(logits) - min(count, len(logits))
    return np.where(logits < np.partition(logits, last)[last], MASKED, logits)


def top_p(logits: Logits, mass: float) -> Logits:
    """Keep the most likely ids that together hold `mass`, at least one, and those as likely as the last."""
    ascending = np.sort(logits[logits != MASKED])
    if len(ascending) == 0:
        return logits
    # float64, as in backends/cuda/t3/batched_sampling.py: both must cut at the same id.
    likely = np.exp((ascending - ascending[-1]).astype(np.float64))
    unlikely = int(np.count_nonzero(np.cumsum(likely / likely.sum()) <= 1 - mass))
    return np.where(logits < ascending[min(unlikely, len(ascending) - 1)], MASKED, logits)


def process_logits(
    logits: Logits, seen: Seen, order: Literal["chatterbox", "turbo"], sampling: Sampling
) -> Logits:
    """Apply the steps between guidance and the draw: (vocab,) and the ids seen so far -> (vocab,)."""
    penalty = sampling.repetition_penalty
    if penalty != 1 and order == "chatterbox":
        logits = penalize_repetition(logits, seen, penalty)
    if sampling.temperature != 1 and not is_greedy(sampling):
        logits = logits / sampling.temperature
    if sampling.min_p > 0 and order == "chatterbox":
        logits = min_p(logits, sampling.min_p)
    if sampling.top_k > 0:
        logits = top_k(logits, sampling.top_k)
    if sampling.top_p < 1:
        logits = top_p(logits, sampling.top_p)
    if penalty != 1 and order == "turbo":
        # PARITY: Turbo penalizes last, after the cuts.
        #         tests/decoding/test_sampling.py::test_turbo_penalises_after_it_cuts
        logits = penalize_repetition(logits, seen, penalty)
    return logits


def is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature < GREEDY_BELOW


def draw(logits: Logits, key: int | None, number: int) -> int:
    """Sample one id: draw `number` of the Philox stream `key`, or the most likely id if there is no key.

    This is the Gumbel-max trick: the argmax of logit - log(-log(u)), with a uniform u of its own for each id and
    draw. backends/cuda/t3/batched_sampling.py samples the same ids.
    """
    if not math.isfinite(logits.max()):
        raise ArithmeticError("T3's logits are not finite numbers")
    if key is None:
        return int(logits.argmax())
    left = np.flatnonzero(logits != MASKED)
    waits = -np.log(uniform(key, number, left))
    return int(left[np.argmax(logits[left] - np.log(waits))])
