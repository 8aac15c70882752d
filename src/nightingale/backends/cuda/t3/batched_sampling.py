"""Logits to tokens for all slots at once, without the host: the batched counterpart of decoding/sampling.py.

The sampling parameters of each request are one row of small tensors, so one graph serves any mixture of
requests; a parameter that is off has a value that changes nothing. Only sorting, which top-k and top-p need
and which costs more than everything else, is left out of the graph while no request asks for it.

Tokens are drawn by the Gumbel-max trick with the numbers of decoding/philox.py: for the same logits, seed and
draw number, decoding/sampling.py gives the same token. On a GPU with Triton, sampling_kernels.py does the same
in three kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nightingale.backends.cuda.graphs import copy_async
from nightingale.backends.cuda.random import uniform
from nightingale.decoding.sampling import is_greedy
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH
from nightingale.types import Sampling

SamplerOrder = Literal["chatterbox", "turbo"]
NO_TOKEN = -1
INVALID_LOGITS = -2
"""Stands for a token: the logits are not finite, and the utterance must end."""


class SlotStart(NamedTuple):
    """An utterance whose prompt has so many positions, and which may have so many tokens."""

    slot: int
    sampling: Sampling
    key: int
    """The key of its random numbers."""
    length: int
    budget: int


@dataclass(slots=True, kw_only=True)
class DecodeState:
    """The state of all slots between two decode steps, as tensors that never move: graphs use them in place.

    A slot holds one utterance. Slots in use have no gaps, so a bucket of utterances is a slice. A field without
    a shape is (slots,).
    """

    temperature: Tensor
    greedy: Tensor
    top_p: Tensor
    """float64, as decoding/sampling.py sums probabilities."""
    log_min_p: Tensor
    top_k: Tensor
    """The size of the vocabulary if it is off."""
    penalty: Tensor
    cfg_weight: Tensor
    key: Tensor
    """The key of the random numbers, `int64_key`."""
    logits: Tensor
    """(slots, rows, vocab) float32: what the next token is sampled from."""
    seen: Tensor
    """(slots, vocab) bool: the ids that the repetition penalty applies to."""
    sampled: Tensor
    """The number of tokens that were sampled."""
    lengths: Tensor
    """The number of cached positions."""
    budget: Tensor
    running: Tensor
    """bool: neither stopped nor out of budget."""
    recent: Tensor
    """(steps, slots): the tokens of the current launch, NO_TOKEN where none was sampled. Steps come first, so
    that those of a launch are contiguous and are copied to the host in one piece."""
    cursor: Tensor
    """(1,): the next row of `recent`."""

    @classmethod
    def empty(cls, *, slots: int, rows: int, vocab: int, steps: int, device: torch.device) -> DecodeState:
        """Return free slots, whose sampling parameters change nothing."""

        def full(value: float, dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.full(shape or (slots,), value, dtype=dtype, device=device)

        return cls(
            temperature=full(1.0, torch.float32),
            greedy=full(True, torch.bool),
            top_p=full(1.0, torch.float64),
            log_min_p=full(-math.inf, torch.float32),
            top_k=full(vocab, torch.int64),
            penalty=full(1.0, torch.float32),
            cfg_weight=full(0.0, torch.float32),
            key=full(0, torch.int64),
            logits=full(0.0, torch.float32, slots, rows, vocab),
            seen=full(False, torch.bool, slots, vocab),
            sampled=full(0, torch.int64),
            lengths=full(0, torch.int64),
            budget=full(0, torch.int64),
            running=full(False, torch.bool),
            recent=full(0, torch.int64, steps, slots),
            cursor=full(0, torch.int64, 1),
        )

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def first(self, slots: int) -> DecodeState:
        """Return views of the first slots."""
        views = {name: value[:slots] for name, value in self.tensors().items()}
        return DecodeState(**views | {"cursor": self.cursor, "recent": self.recent[:, :slots]})

    def start(self, starts: Sequence[SlotStart]) -> None:
        """Reset slots whose prompts are cached and whose logits are set."""
        slots = self.set_parameters(starts)
        self.sampled.index_fill_(0, slots, 0)
        self.running.index_fill_(0, slots, True)
        self.seen.index_fill_(0, slots, False)
        self.seen[:, START_SPEECH].index_fill_(0, slots, True)

    def set_parameters(self, starts: Sequence[SlotStart]) -> Tensor:
        """Set the parameters of slots, with two copies from the host for all; return the slots on the device."""
        vocab, device = self.seen.shape[1], self.seen.device
        whole, real = [], []
        for one in starts:
            sampling, greedy = one.sampling, is_greedy(one.sampling)
            top_k = min(sampling.top_k, vocab) if sampling.top_k > 0 else vocab
            log_min_p = math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf
            temperature = 1.0 if greedy else sampling.temperature
            whole.append([one.slot, one.key, one.length, one.budget, top_k, greedy])
            real.append(
                [temperature, sampling.top_p, log_min_p, sampling.repetition_penalty, sampling.cfg_weight]
            )
        slots: Tensor
        slots, *numbers = copy_async(torch.tensor(whole).T.contiguous(), device)
        numbers += copy_async(torch.tensor(real, dtype=torch.float64).T.contiguous(), device)
        names = "key lengths budget top_k greedy temperature top_p log_min_p penalty cfg_weight"
        for name, values in zip(names.split(), numbers, strict=True):
            field = getattr(self, name)
            field.index_copy_(0, slots, values.to(field.dtype))
        return slots

    def _fill(self, slot: int, **values: float) -> None:
        for name, value in values.items():
            # Not an assignment to one element of a GPU tensor, which is a copy from the host and waits.
            getattr(self, name)[slot].fill_(value)

    def release(self, slot: int) -> None:
        self._fill(slot, running=False, lengths=0)

    def move(self, source: int, target: int) -> None:
        for name, value in self.tensors().items():
            if name not in ("cursor", "recent"):
                value[target] = value[source]

    def append(self, tokens: Tensor, invalid: Tensor, order: SamplerOrder) -> None:
        """Append the sampled tokens (slots,) and stop the slots that end, or that are `invalid` (slots,)."""
        stopped = tokens == STOP_SPEECH
        if order == "turbo":
            # PARITY: Turbo's penalty counts the start token for the first draw only, which does not stop.
            #         tests/backends/cuda/test_decode_loop.py::test_turbo_does_not_stop_at_its_first_draw
            first = self.sampled == 0
            self.seen[:, START_SPEECH] &= ~first
            stopped = stopped & ~first
        self.seen.scatter_(1, tokens[:, None], True)
        fresh = torch.where(self.running, torch.where(invalid, INVALID_LOGITS, tokens), NO_TOKEN)
        self.recent.index_copy_(0, self.cursor, fresh[None])
        self.cursor.add_(1)
        self.sampled.add_(self.running)
        self.running.logical_and_(~(stopped | invalid | (self.sampled >= self.budget)))


def needs_sorting(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1


def apply_guidance(logits: Tensor, weight: Tensor) -> Tensor:
    """Apply classifier-free guidance, if there are two rows: (slots, rows, vocab) -> (slots, vocab)."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    conditional, unconditional = logits[:, 0], logits[:, 1]
    return conditional + weight[:, None] * (conditional - unconditional)


def process_logits(logits: Tensor, state: DecodeState, *, order: SamplerOrder, sorting: bool) -> Tensor:
    """Apply the steps between guidance and the draw, in the family's order, to logits (slots, vocab)."""
    if order == "chatterbox":
        logits = apply_penalty(logits, state) / state.temperature[:, None]
        least = logits.amax(dim=-1, keepdim=True) + state.log_min_p[:, None]
        logits = logits.masked_fill(logits < least, -torch.inf)
        return top_k_top_p(logits, state) if sorting else logits
    # PARITY: Turbo applies the penalty last, after the cuts, and has no min-p.
    #         tests/backends/cuda/test_batched_sampling.py::test_every_family_processes_logits_as_on_the_host
    logits = logits / state.temperature[:, None]
    return apply_penalty(top_k_top_p(logits, state) if sorting else logits, state)


def apply_penalty(logits: Tensor, state: DecodeState) -> Tensor:
    penalty = state.penalty[:, None]
    return torch.where(state.seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def top_k_top_p(logits: Tensor, state: DecodeState) -> Tensor:
    """Apply top-k, then top-p to what is left, with one sort. Ids as likely as the last one kept are kept."""
    vocab = logits.shape[-1]
    ascending = torch.sort(logits, dim=-1).values
    least = ascending.gather(1, vocab - state.top_k[:, None])
    kept = ascending.masked_fill(ascending < least, -torch.inf)
    dropped = _cumulative_sum(torch.softmax(kept.double(), dim=-1)) <= 1 - state.top_p[:, None]
    # The most likely id is always kept, however small the mass.
    first = dropped.sum(dim=-1, keepdim=True).clamp(max=vocab - 1)
    least = torch.maximum(least, kept.gather(1, first))
    return logits.masked_fill(logits < least, -torch.inf)


def sample(logits: Tensor, state: DecodeState) -> Tensor:
    """Sample the next id of each slot: (slots, vocab) -> (slots,). See `decoding.sampling.draw`."""
    waits = -torch.log(uniform(state.key, state.sampled, logits.shape[-1]))
    return torch.where(state.greedy[:, None], logits.double(), logits - torch.log(waits)).argmax(dim=-1)


def _cumulative_sum(x: Tensor) -> Tensor:
    """Return the running sum of each row (slots, vocab).

    Never of one row alone: CUDA splits that among blocks that add in any order, and the last bit varies.
    """
    return x.cumsum(dim=-1) if len(x) > 1 else x.expand(2, -1).cumsum(dim=-1)[:1]
