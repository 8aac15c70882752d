"""The state of all slots between two decode steps, as tensors that never move: graphs use them in place.

A slot holds one utterance. Slots in use have no gaps, so a bucket of utterances is a slice.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from nightingale.backends.cuda.t3.batched_sampling import BatchedSampling, SamplerOrder
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH

NO_TOKEN = -1
INVALID_LOGITS = -2
"""Stands for a token: the logits are not finite, and the utterance must end."""


@dataclass(slots=True, kw_only=True)
class DecodeState:
    sampling: BatchedSampling
    logits: Tensor
    """(slots, rows, vocab) float32: what the next token is sampled from."""
    seen: Tensor
    """(slots, vocab) bool: the ids that the repetition penalty applies to."""
    sampled: Tensor
    """(slots,): the number of tokens that were sampled."""
    lengths: Tensor
    """(slots,): the number of cached positions."""
    budget: Tensor
    running: Tensor
    """(slots,) bool: neither stopped nor out of budget."""
    recent: Tensor
    """(steps, slots): the tokens of the current launch, NO_TOKEN where none was sampled. Steps come first, so
    that those of a launch are contiguous and are copied to the host in one piece."""
    cursor: Tensor
    """(1,): the next row of `recent`."""

    @classmethod
    def empty(cls, *, slots: int, rows: int, vocab: int, steps: int, device: torch.device) -> DecodeState:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            sampling=BatchedSampling.off(slots, vocab, device),
            logits=zeros(slots, rows, vocab, dtype=torch.float32),
            seen=zeros(slots, vocab, dtype=torch.bool),
            sampled=zeros(slots),
            lengths=zeros(slots),
            budget=zeros(slots),
            running=zeros(slots, dtype=torch.bool),
            recent=zeros(steps, slots),
            cursor=zeros(1),
        )

    def tensors(self) -> dict[str, Tensor]:
        return self._own() | {f"sampling.{name}": value for name, value in self.sampling.tensors().items()}

    def first(self, slots: int) -> DecodeState:
        """Return views of the first slots."""
        own = {name: value[:slots] for name, value in self._own().items()}
        own |= {"cursor": self.cursor, "recent": self.recent[:, :slots]}
        return DecodeState(sampling=self.sampling.first(slots), **own)

    def _own(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "sampling"}

    def start(self, slot: int, *, length: int, budget: int) -> None:
        """Reset a slot whose prompt of `length` positions is cached and whose logits are set."""
        # Filled, not assigned: an assignment is a copy from the host, which waits for what was launched.
        self.seen[slot].fill_(False)
        self.seen[slot, START_SPEECH].fill_(True)
        self.sampled[slot].fill_(0)
        self.lengths[slot].fill_(length)
        self.budget[slot].fill_(budget)
        self.running[slot].fill_(True)

    def release(self, slot: int) -> None:
        self.running[slot].fill_(False)
        self.lengths[slot].fill_(0)

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
