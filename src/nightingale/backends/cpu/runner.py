"""T3's decode steps in int8 on a CPU, with weights of 8 or 4 bits, by generated machine code.

A row of the KV cache holds the keys and values of one sequence in all layers. Only rows that take part in a
step are computed, and of a prompt only what follows a cached prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nightingale.backends.cpu.kernels.t3_operations import MAX_TOKENS
from nightingale.backends.cpu.kernels.vector_math import LANES
from nightingale.backends.cpu.t3_program import T3Program
from nightingale.backends.shared.slot_runner import SlotRunner
from nightingale.backends.shared.t3_inputs import Floats, InputEmbeddings
from nightingale.backends.torch.runner import embed_prompt
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.runner import StepInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.capacity import check_capacity


class Int8Runner(SlotRunner[Logits]):
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
        self._t3, self._embeddings, self._max_new_tokens = t3, InputEmbeddings(t3), max_new_tokens
        threads = torch.get_num_threads() if threads is None else threads
        self._program = T3Program(t3, packed, rows=slots * rows_per_slot, capacity=capacity, threads=threads)
        super().__init__(
            self._program.kv_cache,
            slots=slots,
            rows_per_slot=rows_per_slot,
            capacity=capacity,
            batched=batched,
        )

    @torch.inference_mode()
    def prefill(self, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        del max_tokens
        x = embed_prompt(self._t3, prompt, max_new_tokens=self._max_new_tokens)
        return self.prefill_embeddings(slot, x.float().numpy())

    def prefill_embeddings(self, slot: int, prompt: Floats) -> Logits:
        """Read embeddings (rows, time, width) into a slot; return the logits (rows, vocab) after them."""
        return np.stack(self.read_prompt(slot, prompt, self._embeddings.absolute))

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

    def _read(self, row: int, x: Floats, known: int) -> Logits:
        logits = torch.empty(0)
        for first in range(0, len(x), MAX_TOKENS):
            part = x[first : first + MAX_TOKENS]
            self._program.stream[: len(part)] = part
            is_last = first + len(part) == len(x)
            logits = self._program.run([(0, len(part), row, known + first)], logits_tokens=int(is_last))
        return logits[0].numpy()

    def _views(self, row: int, positions: int) -> dict[str, NDArray[Any]]:
        """Return the first positions of a row's keys and values, (layers, heads, …)."""
        blocks = -(-positions // LANES)
        return {
            "keys": self.pool["keys"][row, :, :, :blocks],
            "values": self.pool["values"][row, :, :, :positions],
        }
