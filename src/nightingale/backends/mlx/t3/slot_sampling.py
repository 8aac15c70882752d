"""Logits to tokens for all slots at once, on the device: the counterpart of decoding/sampling.py on MLX.

The sampling parameters of each request are one row of small arrays; a parameter that is off has a value that
changes nothing. Only sorting, which top-k and top-p need, is left out while no request asks for it. Tokens are
sampled by the Gumbel-max trick with the numbers of decoding/philox.py, so a seed gives the tokens of
decoding/sampling.py, up to the rounding of float32.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

import mlx.core as mx

from nightingale.backends.mlx.philox_arrays import gumbel, key_words, uniform_bits
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.sampling import is_greedy
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH
from nightingale.types import Sampling

SamplerOrder = Literal["chatterbox", "turbo"]
NO_TOKEN: Final = -1
INVALID_LOGITS: Final = -2
"""Stands for a token: the logits are not finite, and the utterance must end."""


class SamplingRows(NamedTuple):
    """The sampling parameters of all slots, (slots,) each, and their keys (slots, 2)."""

    temperature: mx.array
    greedy: mx.array
    top_p: mx.array
    log_min_p: mx.array
    top_k: mx.array
    """The size of the vocabulary if it is off."""
    penalty: mx.array
    cfg_weight: mx.array
    budget: mx.array
    key: mx.array

    @classmethod
    def of(cls, decoding: Decoding, vocab: int) -> SamplingRows:
        """Return the one row of an utterance."""
        sampling = decoding.sampling
        return cls(
            temperature=mx.array([1.0 if decoding.greedy else sampling.temperature]),
            greedy=mx.array([is_greedy(sampling)]),
            top_p=mx.array([sampling.top_p]),
            log_min_p=mx.array([math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf]),
            top_k=mx.array([min(sampling.top_k, vocab) if sampling.top_k > 0 else vocab]),
            penalty=mx.array([float(sampling.repetition_penalty)]),
            cfg_weight=mx.array([float(sampling.cfg_weight)]),
            budget=mx.array([decoding.budget]),
            key=key_words(decoding.key),
        )


class SlotState(NamedTuple):
    """The state of all slots between two steps."""

    logits: mx.array
    """(slots, vocab) float32, after guidance: what the next token is sampled from."""
    seen: mx.array
    """(slots, vocab) bool: the ids that the repetition penalty applies to."""
    sampled: mx.array
    """(slots,): the number of tokens that were sampled."""
    lengths: mx.array
    """(slots,): the number of cached positions."""
    running: mx.array
    """(slots,) bool: neither stopped nor out of budget."""

    @classmethod
    def after_prompt(cls, logits: mx.array, length: int) -> SlotState:
        """Return the one row of an utterance whose prompt of `length` positions gave logits (1, vocab)."""
        return cls(
            logits=logits,
            seen=mx.arange(logits.shape[1])[None] == START_SPEECH,
            sampled=mx.array([0]),
            lengths=mx.array([length]),
            running=mx.array([True]),
        )


def needs_sorting(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1


def sampling_noise(rows: SamplingRows, sampled: mx.array, steps: int, vocab: int) -> mx.array:
    """Return what is added to the logits of the next steps: (steps, slots, vocab), zeros for greedy slots."""
    slots = len(sampled)
    numbers = sampled[None] + mx.arange(steps)[:, None]
    keys = mx.broadcast_to(rows.key[None], (steps, slots, 2)).reshape(-1, 2)
    noise = gumbel(uniform_bits(keys, numbers.reshape(-1), vocab)).reshape(steps, slots, vocab)
    return mx.where(rows.greedy[:, None], 0.0, noise)


def guide(logits: mx.array, counts: list[int], weight: mx.array) -> mx.array:
    """Apply classifier-free guidance: logits (rows, vocab), of which slots have `counts`, -> (slots, vocab)."""
    first = [sum(counts[:slot]) for slot in range(len(counts))]
    if max(counts) == 1:
        return logits
    last = [at + count - 1 for at, count in zip(first, counts, strict=True)]
    conditional, unconditional = logits[mx.array(first)], logits[mx.array(last)]
    return conditional + weight[:, None] * (conditional - unconditional)


def process_logits(state: SlotState, rows: SamplingRows, *, order: SamplerOrder, sorting: bool) -> mx.array:
    """Apply the steps between guidance and the draw, in the family's order: (slots, vocab)."""
    logits = state.logits
    if order == "chatterbox":
        logits = _penalize(logits, state, rows) / rows.temperature[:, None]
        least = logits.max(axis=-1, keepdims=True) + rows.log_min_p[:, None]
        logits = mx.where(logits < least, -mx.inf, logits)
        return _top_k_top_p(logits, rows) if sorting else logits
    # PARITY: Turbo applies the penalty last, after the cuts, and has no min-p.
    #         tests/decoding/test_sampling.py::test_turbo_penalises_after_it_cuts
    logits = logits / rows.temperature[:, None]
    return _penalize(_top_k_top_p(logits, rows) if sorting else logits, state, rows)


def sample(
    state: SlotState, rows: SamplingRows, noise: mx.array, *, order: SamplerOrder, sorting: bool
) -> tuple[mx.array, mx.array, SlotState]:
    """Sample a token of each slot with noise (slots, vocab).

    Return the tokens, what the host is told of them (NO_TOKEN for slots that do not run), and the state.
    """
    logits = process_logits(state, rows, order=order, sorting=sorting)
    invalid = ~mx.isfinite(logits.max(axis=-1))
    tokens = mx.argmax(logits + noise, axis=-1).astype(mx.int32)
    seen, stopped = state.seen, tokens == STOP_SPEECH
    vocabulary = mx.arange(logits.shape[1])[None]
    if order == "turbo":
        # PARITY: Turbo's penalty counts the start token for the first draw only, which does not stop.
        #         tests/backends/torch/test_decoding.py::test_turbo_does_not_stop_at_its_first_draw
        first = state.sampled == 0
        seen = seen & ~(first[:, None] & (vocabulary == START_SPEECH))
        stopped = stopped & ~first
    told = mx.where(state.running, mx.where(invalid, INVALID_LOGITS, tokens), NO_TOKEN)
    sampled = state.sampled + state.running
    running = state.running & ~(stopped | invalid | (sampled >= rows.budget))
    seen = seen | (vocabulary == tokens[:, None])
    return tokens, told, state._replace(seen=seen, sampled=sampled, running=running)


def _penalize(logits: mx.array, state: SlotState, rows: SamplingRows) -> mx.array:
    penalty = rows.penalty[:, None]
    return mx.where(state.seen, mx.where(logits < 0, logits * penalty, logits / penalty), logits)


def _top_k_top_p(logits: mx.array, rows: SamplingRows) -> mx.array:
    """Apply top-k, then top-p to what is left, with one sort. Ids as likely as the last one kept are kept."""
    vocab = logits.shape[1]
    ascending = mx.sort(logits, axis=-1)
    least = mx.take_along_axis(ascending, vocab - rows.top_k[:, None], axis=-1)
    kept = mx.where(ascending < least, -mx.inf, ascending)
    dropped = mx.cumsum(mx.softmax(kept, axis=-1, precise=True), axis=-1) <= 1 - rows.top_p[:, None]
    # The most likely id is always kept, however small the mass.
    first = mx.minimum(dropped.sum(axis=-1, keepdims=True), vocab - 1)
    least = mx.maximum(least, mx.take_along_axis(kept, first, axis=-1))
    return mx.where(logits < least, -mx.inf, logits)
