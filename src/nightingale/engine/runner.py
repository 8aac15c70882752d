"""The tensors of one step of T3, over a fixed pool of memory.

A slot is the memory of one utterance: two rows where the family can be guided, one elsewhere. Slots are
allocated once; nothing grows with the number of requests.

Two ways to take a step. *Alone*, each utterance by itself: its arithmetic does not know who else is speaking,
so its tokens are the same bit for bit in any crowd. *Batched*, all in one pass: weights are read once for
everybody, which is where the time goes; sums may then round differently in company.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nightingale.models.chatterbox.t3.model import T3
from nightingale.nn.memory import DenseMemory, RowsMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One utterance's share of a step."""

    slot: int
    token: int
    """The token it drew last."""
    position: int
    """Where that token stands after the start token."""


class Runner(Protocol):
    """What takes T3's steps. Slots in use have no gaps; a prompt of one row is not guided, one of two is."""

    @property
    def bytes(self) -> int:
        """What the pool of memory takes, however many are speaking."""

    def begin(self, slot: int, prompt: Tensor) -> Tensor:
        """Read a prompt (rows, time, width) into a slot; scores of the first token (rows, vocab)."""

    def step(self, turns: list[Turn]) -> list[Tensor]:
        """Scores of the next token of each utterance, each (rows, vocab). All are taken, or none is."""

    def move(self, source: int, target: int) -> None:
        """Bring an utterance's memory to another slot."""

    def wipe(self, slot: int) -> None:
        """After a fault: what is not a number would reach the slot's next utterance, masked or not."""


class PlainRunner:
    """The reference: torch, in the precision of the weights."""

    def __init__(self, t3: T3, *, slots: int, rows_per_slot: int, capacity: int, batched: bool) -> None:
        self.t3, self.rows_per_slot, self.batched = t3, rows_per_slot, batched
        self.capacity = capacity
        self.layers = [
            memory
            for memory in t3.new_memory(rows=slots * rows_per_slot, capacity=capacity)
            if isinstance(memory, DenseMemory)
        ]
        self.memories: list[list[DenseMemory]] = [[] for _ in range(slots)]
        """memories[slot]: one per layer, over the rows that utterance uses."""

    @property
    def bytes(self) -> int:
        return sum(2 * m.keys.numel() * m.keys.element_size() for m in self.layers)

    @torch.inference_mode()
    def begin(self, slot: int, prompt: Tensor) -> Tensor:
        first = slot * self.rows_per_slot
        self.memories[slot] = [memory.of_rows(first, len(prompt)) for memory in self.layers]
        return self.t3.next_scores(prompt, self.memories[slot])

    @torch.inference_mode()
    def step(self, turns: list[Turn]) -> list[Tensor]:
        if self.batched and len(turns) > 1:
            return self._together(turns)
        return [self._alone(turn) for turn in turns]

    def move(self, source: int, target: int) -> None:
        old = self.memories[source]
        first = target * self.rows_per_slot
        rows, length = len(old[0].keys), old[0].position
        new = [memory.of_rows(first, rows) for memory in self.layers]
        for before, after in zip(old, new, strict=True):
            after.keys[:, :, :length] = before.keys[:, :, :length]
            after.values[:, :, :length] = before.values[:, :, :length]
            after.position = length
        self.memories[target], self.memories[source] = new, []

    @torch.inference_mode()
    def wipe(self, slot: int) -> None:
        for memory in self.memories[slot]:
            memory.keys.zero_()
            memory.values.zero_()

    def _alone(self, turn: Turn) -> Tensor:
        memory = self.memories[turn.slot]
        ids = torch.full((len(memory[0].keys), 1), turn.token, device=memory[0].keys.device)
        return self.t3.next_scores(self.t3.embed_speech(ids, turn.position), memory)

    def _together(self, turns: list[Turn]) -> list[Tensor]:
        """All slots up to the last in use. Rows nobody uses compute something that nobody reads.

        Where nobody is guided, the second row of each slot is stepped over: half the work.
        """
        used = max(len(self.memories[turn.slot][0].keys) for turn in turns)
        slots = max(turn.slot for turn in turns) + 1
        ids, at, lengths = [0] * slots, [0] * slots, [0] * slots
        for slot in range(slots):
            lengths[slot] = self.memories[slot][0].position if self.memories[slot] else 0
        for turn in turns:
            ids[turn.slot], at[turn.slot] = turn.token, turn.position

        def by_row(values: list[int]) -> list[int]:
            return [value for value in values for _ in range(used)]

        memory = RowsMemory.of_layers(self.layers, by_row(lengths), every=self.rows_per_slot // used)
        embedded = torch.tensor([by_row(ids), by_row(at)], device=self.layers[0].keys.device)[..., None]
        scores = self.t3.next_scores(self.t3.embed_speech_at(*embedded), memory)
        out = []
        for turn in turns:
            own = self.memories[turn.slot]
            for layer in own:
                layer.position += 1
            first = turn.slot * used
            out.append(scores[first : first + len(own[0].keys)])
        return out
