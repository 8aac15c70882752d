"""T3's decode steps in int8 on a CPU, by generated machine code.

A row of the KV cache holds the keys and values of one sequence in all layers. Only rows that take part in a
step are computed, and of a prompt only what follows a cached prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.cpu.kernels.t3_operations import MAX_TOKENS
from nightingale.backends.cpu.kernels.vector_math import LANES
from nightingale.backends.cpu.t3_program import T3Program
from nightingale.backends.shared.prefix_cache import PrefixCache
from nightingale.backends.shared.t3_inputs import InputEmbeddings
from nightingale.backends.torch.runner import embed_prompt
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.runner import StepInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.capacity import check_capacity


class Int8Runner:
    def __init__(
        self,
        t3: T3,
        packed: Path,
        *,
        slots: int,
        rows_per_slot: int,
        capacity: int,
        batched: bool,
        max_new_tokens: int,
        threads: int | None = None,
    ) -> None:
        """Open a runner over weights in `TiledFormat`; of t3 only the embeddings are used."""
        self.t3, self.rows_per_slot, self.batched, self.capacity = t3, rows_per_slot, batched, capacity
        self._max_new_tokens = max_new_tokens
        threads = torch.get_num_threads() if threads is None else threads
        self._embeddings, self._prefix_cache = InputEmbeddings(t3), PrefixCache(rows_per_slot)
        self._program = T3Program(t3, packed, rows=slots * rows_per_slot, capacity=capacity, threads=threads)
        self.pool = self._program.kv_cache
        self.rows: list[int] = [0] * slots
        """rows[slot]: the rows that the utterance there uses."""
        self.lengths: list[int] = [0] * slots
        """lengths[slot]: the positions in its KV cache."""

    @property
    def kv_bytes(self) -> int:
        return sum(part.nbytes for part in self.pool.values())

    @torch.inference_mode()
    def prefill(self, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        del max_tokens
        x = embed_prompt(self.t3, prompt, max_new_tokens=self._max_new_tokens)
        return self.prefill_embeddings(slot, x).numpy()

    @torch.inference_mode()
    def prefill_embeddings(self, slot: int, prompt: Tensor) -> Tensor:
        """Prefill a slot with embeddings (rows, time, width); return the logits (rows, vocab) after them."""
        rows, length = prompt.shape[:2]
        check_capacity(length, self.capacity)
        x = self._embeddings.add_positions(prompt.float()).contiguous()
        logits = torch.empty(rows, self.t3.config.speech_vocab)
        for number, embeddings in enumerate(x):
            row = slot * self.rows_per_slot + number
            cached = self._prefix_cache.restore(embeddings.numpy(), partial(self._views, row))
            logits[number] = self._read(row, embeddings[cached:], cached)
            self._prefix_cache.store(embeddings.numpy(), self._views(row, length))
        self.rows[slot], self.lengths[slot] = rows, length
        return logits

    @torch.inference_mode()
    def step(self, turns: Sequence[StepInput]) -> list[Logits]:
        """Return the logits (rows, vocab) of each utterance's next token. If this raises, none has advanced."""
        for turn in turns:
            check_capacity(self.lengths[turn.slot] + 1, self.capacity)
        per_pass = MAX_TOKENS // self.rows_per_slot if self.batched else 1
        logits: list[Logits] = []
        for first in range(0, len(turns), per_pass):
            logits += self._run(turns[first : first + per_pass])
        for turn in turns:
            self.lengths[turn.slot] += 1
        return logits

    def move(self, source: int, target: int) -> None:
        """Copy an utterance's keys and values to another slot."""
        length = self.lengths[source]
        for row in range(self.rows[source]):
            views = self._views(source * self.rows_per_slot + row, length)
            for name, view in self._views(target * self.rows_per_slot + row, length).items():
                view[:] = views[name]
        self.rows[target], self.lengths[target] = self.rows[source], length
        self.rows[source], self.lengths[source] = 0, 0

    def release(self, slot: int) -> None:
        """Do nothing: the next prompt overwrites the slot."""

    def reset(self, slot: int) -> None:
        """Clear a slot and the prefix cache after an error."""
        first = slot * self.rows_per_slot
        for part in self.pool.values():
            part[first : first + self.rows_per_slot] = 0
        self._prefix_cache.entries.clear()

    def _run(self, turns: Sequence[StepInput]) -> list[Logits]:
        """Run one step of some utterances together."""
        rows = [(turn, row) for turn in turns for row in range(self.rows[turn.slot])]
        past = [self.lengths[turn.slot] for turn, _ in rows]
        tokens, positions = zip(*((turn.token, turn.position) for turn, _ in rows), strict=True)
        self._embeddings.embed(self._program.stream[: len(rows)], tokens, positions, past)
        sequences = [
            (number, 1, turn.slot * self.rows_per_slot + row, past[number])
            for number, (turn, row) in enumerate(rows)
        ]
        logits = self._program.run(sequences, logits_tokens=len(rows))
        return [part.numpy() for part in torch.split(logits, [self.rows[turn.slot] for turn in turns])]

    def _read(self, row: int, x: Tensor, past: int) -> Tensor:
        """Append x (time, width) to a row of `past` positions; return the logits (vocab,) after it."""
        logits = torch.empty(0)
        for first in range(0, len(x), MAX_TOKENS):
            part = x[first : first + MAX_TOKENS]
            self._program.stream[: len(part)] = part.numpy()
            is_last = first + len(part) == len(x)
            logits = self._program.run([(0, len(part), row, past + first)], logits_tokens=int(is_last))
        return logits[0]

    def _views(self, row: int, positions: int) -> dict[str, NDArray[np.float16]]:
        """Return the first positions of a row's keys and values, (layers, heads, …)."""
        blocks = -(-positions // LANES)
        return {
            "keys": self.pool["keys"][row, :, :, :blocks],
            "values": self.pool["values"][row, :, :, :positions],
        }
