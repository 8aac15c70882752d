"""What changes from one decode step to the next, as tensors that never move: graphs use them in place.

A slot is one utterance. Slots in use have no gaps, so a bucket of utterances is a slice.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from nightingale.backends.cuda.batched_sampling import Knobs, Order
from nightingale.models.chatterbox.t3.config import START_SPEECH, STOP_SPEECH

NO_TOKEN = -1
BROKEN = -2
"""Instead of a token: the scores are no numbers. Whoever reads it must end the utterance."""


@dataclass(slots=True, kw_only=True)
class DecodeState:
    knobs: Knobs
    scores: Tensor
    """(slots, rows, vocab) float32: what the next token is drawn from."""
    seen: Tensor
    """(slots, vocab) bool."""
    drawn: Tensor
    """(slots,): how many tokens were drawn."""
    lengths: Tensor
    """(slots,): how many positions are remembered."""
    budget: Tensor
    running: Tensor
    """(slots,) bool: neither stopped nor out of budget."""
    recent: Tensor
    """(steps, slots): tokens since the cursor was last set to zero; NO_TOKEN where nothing was drawn. Steps
    first, so that those of a launch lie together and are copied to the host without a detour."""
    cursor: Tensor
    """(1,): the next row of `recent`."""

    @classmethod
    def empty(cls, *, slots: int, rows: int, vocab: int, steps: int, device: torch.device) -> DecodeState:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            knobs=Knobs.off(slots, vocab, device),
            scores=zeros(slots, rows, vocab, dtype=torch.float32),
            seen=zeros(slots, vocab, dtype=torch.bool),
            drawn=zeros(slots),
            lengths=zeros(slots),
            budget=zeros(slots),
            running=zeros(slots, dtype=torch.bool),
            recent=zeros(steps, slots),
            cursor=zeros(1),
        )

    def tensors(self) -> dict[str, Tensor]:
        return self._own() | {f"knobs.{name}": value for name, value in self.knobs.tensors().items()}

    def first(self, slots: int) -> DecodeState:
        """Views of the first so many slots."""
        own = {name: value[:slots] for name, value in self._own().items()}
        own |= {"cursor": self.cursor, "recent": self.recent[:, :slots]}
        return DecodeState(knobs=self.knobs.first(slots), **own)

    def _own(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "knobs"}

    def begin(self, slot: int, *, length: int, budget: int) -> None:
        """Nothing drawn, and so much remembered; the scores are the prompt's."""
        # Filled, and not assigned to: that would be a copy from the host, which waits for what is launched.
        self.seen[slot].fill_(False)
        self.seen[slot, START_SPEECH].fill_(True)
        self.drawn[slot].fill_(0)
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

    def append(self, tokens: Tensor, broken: Tensor, order: Order) -> None:
        """Note the tokens (slots,) just drawn, and who goes on; who is `broken` (slots,) does not."""
        stopped = tokens == STOP_SPEECH
        if order == "turbo":
            # PARITY: Turbo's penalty counts the start token for the first draw only, and that draw is not
            #         looked at for the stop.
            #         tests/backends/cuda/test_decode.py::test_turbo_does_not_stop_at_its_first_draw
            first = self.drawn == 0
            self.seen[:, START_SPEECH] &= ~first
            stopped = stopped & ~first
        self.seen.scatter_(1, tokens[:, None], True)
        fresh = torch.where(self.running, torch.where(broken, BROKEN, tokens), NO_TOKEN)
        self.recent.index_copy_(0, self.cursor, fresh[None])
        self.cursor.add_(1)
        self.drawn.add_(self.running)
        self.running.logical_and_(~(stopped | broken | (self.drawn >= self.budget)))
