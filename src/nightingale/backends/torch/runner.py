"""The tensors of one step of T3, over a fixed pool of memory.

A slot is the memory of one utterance: two rows where the family can be guided, one elsewhere. Slots are
allocated once; nothing grows with the number of requests.

Two ways to take a step. *Alone*, each utterance by itself: its arithmetic does not know who else is speaking,
so its tokens are the same bit for bit in any crowd. *Batched*, all in one pass: weights are read once for
everybody, which is where the time goes; sums may then round differently in company.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from nightingale.backends.torch.kv_pools import Pool, Remembered, SlotKVPool
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_cache import KVCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One utterance's share of a step."""

    slot: int
    token: int
    """The token it drew last."""
    position: int
    """Where that token stands after the start token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Several tokens of one utterance at once: the one it drew last, and guesses at those to come."""

    slot: int
    tokens: Sequence[int]
    position: int
    """Where the first of them stands after the start token."""


class Runner(Protocol):
    """What takes T3's steps. Slots in use have no gaps; a prompt of one row is not guided, one of two is."""

    @property
    def bytes(self) -> int:
        """What the pool of memory takes, however many are speaking."""

    def begin(self, slot: int, prompt: Tensor) -> Tensor:
        """Read a prompt (rows, time, width) into a slot; scores of the first token (rows, vocab)."""

    def step(self, turns: list[Turn]) -> list[Tensor]:
        """Logits of the next token of each utterance, each (rows, vocab). All are taken, or none is."""

    def move(self, source: int, target: int) -> None:
        """Bring an utterance's memory to another slot."""

    def wipe(self, slot: int) -> None:
        """After a fault: what is not a number would reach the slot's next utterance, masked or not."""


class Verifier(Runner, Protocol):
    """A runner that takes back what turned out not to be said."""

    def verify(self, trials: list[Trial]) -> list[Tensor]:
        """Logits after each token of each utterance, each (rows, tokens, vocab), all of them remembered."""

    def rewind(self, slot: int, count: int) -> None:
        """Forget the last so many positions of a slot."""

    def listen(self) -> None:
        """From now on, remember what T3 thinks."""

    def thought(self, slot: int, draw: int) -> Tensor:
        """What T3's head read for an utterance's draw of this number, and T3's stream halfway there: (rows,
        width + TAPS * width), of its latest pass."""


class PlainRunner:
    """The reference: torch, in the precision of the weights."""

    def __init__(
        self,
        t3: T3,
        *,
        slots: int,
        rows_per_slot: int,
        capacity: int,
        batched: bool,
        spare: int = 0,
        pool: Pool | None = None,
    ) -> None:
        """spare: positions past the capacity, where rows with fewer guesses than others may write. pool:
        where the memory is; if not told, in slots of the given capacity."""
        self.t3, self.batched, self.capacity = t3, batched, capacity
        self.pool: Pool = pool or SlotKVPool.of(
            t3, slots=slots, rows_per_slot=rows_per_slot, capacity=capacity + spare
        )
        self.memories: list[list[Remembered]] = [[] for _ in range(slots)]
        """memories[slot]: one per layer, over the rows that utterance uses."""
        self._expected: dict[int, int] = {}
        self._listens = False
        self._thoughts: dict[int, tuple[int, list[Tensor]]] = {}
        """Of each slot's latest pass: the number of its first draw, and (rows, tokens, width) of what T3's
        head read and of its stream on the way there."""

    @property
    def bytes(self) -> int:
        return self.pool.bytes

    def expect(self, slot: int, tokens: int) -> None:
        """Whoever begins in this slot next will have so many tokens at most."""
        self._expected[slot] = tokens

    @torch.inference_mode()
    def begin(self, slot: int, prompt: Tensor) -> Tensor:
        rows, length = prompt.shape[:2]
        self.memories[slot] = []
        tokens = self._expected.pop(slot, None)
        self.memories[slot] = self.pool.open(slot, rows=rows, prompt=length, tokens=tokens)
        # Copied, for the whole prompt's would be kept otherwise.
        thoughts = [part[:, -1:].clone() for part in self._think(prompt, self.memories[slot])]
        self._thoughts[slot] = 0, thoughts
        scores: Tensor = self.t3.speech_head(thoughts[0])
        return scores[:, 0]

    @torch.inference_mode()
    def step(self, turns: list[Turn]) -> list[Tensor]:
        trials = [Trial(slot=turn.slot, tokens=(turn.token,), position=turn.position) for turn in turns]
        return [scores[:, -1] for scores in self._take(trials)]

    @torch.inference_mode()
    def verify(self, trials: list[Trial]) -> list[Tensor]:
        return self._take(trials)

    def rewind(self, slot: int, count: int) -> None:
        for memory in self.memories[slot]:
            memory.rewind(memory.position - count)

    def listen(self) -> None:
        self._listens = True

    def thought(self, slot: int, draw: int) -> Tensor:
        assert self._listens, "nobody listened"
        first, thoughts = self._thoughts[slot]
        return torch.cat([part[:, draw - first] for part in thoughts], dim=-1)

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        self.memories[target] = self.pool.move(self.memories[source], target)
        self.memories[source] = []
        self._thoughts[target] = self._thoughts.pop(source)

    def leave(self, slot: int) -> None:
        """Whoever was there is done; its memory may serve others."""
        self.pool.close(self.memories[slot])
        self.memories[slot] = []

    @torch.inference_mode()
    def wipe(self, slot: int) -> None:
        self.pool.wipe(self.memories[slot])

    def shallow(self, t3: T3) -> PlainRunner:
        """The first layers of T3 alone, in the same slots and in the memory they have here."""
        part, layers = copy.copy(self), t3.config.backbone.layers
        part.t3, part.pool = t3, self.pool.first(layers)
        part.memories = [memory[:layers] for memory in self.memories]
        return part

    def _think(self, x: Tensor, memory: Sequence[KVCache]) -> list[Tensor]:
        """What T3's head reads, first."""
        return self.t3.hidden_states(x, memory) if self._listens else [self.t3.tfmr(x, memory)]

    def _take(self, trials: list[Trial]) -> list[Tensor]:
        begun = [self.memories[trial.slot][0].position for trial in trials]
        try:
            if self.batched and len(trials) > 1:
                return self._together(trials)
            return [self._alone(trial) for trial in trials]
        except Exception:
            for trial, position in zip(trials, begun, strict=True):
                for memory in self.memories[trial.slot]:
                    memory.rewind(position)
            raise

    def _alone(self, trial: Trial) -> Tensor:
        memory = self.memories[trial.slot]
        ids = torch.tensor([trial.tokens] * memory[0].rows, device=self.t3.speech_head.weight.device)
        thoughts = self._think(self.t3.embed_speech(ids, trial.position), memory)
        self._thoughts[trial.slot] = trial.position, thoughts
        scores: Tensor = self.t3.speech_head(thoughts[0])
        return scores

    def _together(self, trials: list[Trial]) -> list[Tensor]:
        """All slots up to the last in use. Rows nobody uses compute something that nobody reads.

        Where nobody is guided, the second row of each slot is stepped over: half the work. Who has fewer
        tokens than others is given padding, which nobody reads either.
        """
        used = max(self.memories[trial.slot][0].rows for trial in trials)
        slots = max(trial.slot for trial in trials) + 1
        most = max(len(trial.tokens) for trial in trials)
        ids, at, counts = [[0] * most for _ in range(slots)], [[0] * most for _ in range(slots)], [0] * slots
        for trial in trials:
            count = counts[trial.slot] = len(trial.tokens)
            ids[trial.slot] = [*trial.tokens, *[0] * (most - count)]
            at[trial.slot] = [trial.position + min(ahead, count - 1) for ahead in range(most)]

        def by_row(values: list[Any]) -> list[Any]:
            return [value for value in values for _ in range(used)]

        memory = self.pool.together(self.memories[:slots], used=used, counts=counts)
        embedded = torch.tensor([by_row(ids), by_row(at)], device=self.t3.speech_head.weight.device)
        thoughts = self._think(self.t3.embed_speech_at(*embedded), memory)
        scores = self.t3.speech_head(thoughts[0])
        out = []
        for trial in trials:
            mine = self.memories[trial.slot]
            self.pool.advance(mine, len(trial.tokens))
            own = slice(trial.slot * used, trial.slot * used + mine[0].rows), slice(len(trial.tokens))
            self._thoughts[trial.slot] = trial.position, [part[own] for part in thoughts]
            out.append(scores[own])
        return out
