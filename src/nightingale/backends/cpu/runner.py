"""T3's steps on a CPU by machine code of our own, with weights of eight bits: the engine's Runner.

A row of the pool is the memory of one row of an utterance, all layers of it. Rows that have no turn are not
computed. A prompt is not read twice, as in backends/onnx/runner.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.cpu.kernels.jit import CompiledModule
from nightingale.backends.cpu.kernels.t3_operations import MAX_TOKENS
from nightingale.backends.cpu.kernels.vector_math import LANES
from nightingale.backends.cpu.t3_program import KEYS, VALUES, T3Program, new_kv_cache
from nightingale.backends.shared.packed_t3 import PackedWeights
from nightingale.backends.shared.prefix_cache import PrefixCache
from nightingale.backends.shared.t3_inputs import InputEmbeddings
from nightingale.backends.torch.runner import embed_prompt
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.runner import StepInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_cache import check_capacity


class Int8Runner:
    def __init__(
        self,
        t3: T3,
        packed: PackedWeights,
        module: CompiledModule,
        *,
        slots: int,
        rows_per_slot: int,
        capacity: int,
        batched: bool,
        max_new_tokens: int,
        threads: int | None = None,
    ) -> None:
        """t3: its embeddings are used, its layers are not (`without_backbone`). packed, module: from
        capabilities.py. threads: that a step is done by; as many as torch uses if not told."""
        self.t3, self.rows_per_slot, self.batched, self.capacity = t3, rows_per_slot, batched, capacity
        self._max_new_tokens = max_new_tokens
        threads = torch.get_num_threads() if threads is None else threads
        self.pool = new_kv_cache(t3, slots * rows_per_slot, capacity)
        self._embeddings, self._prefix_cache = InputEmbeddings(t3), PrefixCache(rows_per_slot)
        self._program = T3Program(t3, packed, self.pool, module, capacity=capacity, threads=threads)
        self.rows: list[int] = [0] * slots
        """rows[slot]: how many the utterance there uses."""
        self.lengths: list[int] = [0] * slots
        """lengths[slot]: how many positions it remembers."""

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
        """Read embeddings (rows, time, width) into a slot; return the logits (rows, vocab) after them."""
        rows, length = prompt.shape[:2]
        check_capacity(length, self.capacity)
        first = slot * self.rows_per_slot
        x = self._embeddings.add_positions(prompt.float()).contiguous()
        scores = torch.empty(rows, self.t3.config.speech_vocab)
        for row in range(rows):
            known = self._prefix_cache.restore(x[row], partial(self._own, first + row))
            scores[row] = self._read(first + row, x[row, known:], known)
            self._prefix_cache.store(x[row], self._own(first + row, length))
        self.rows[slot], self.lengths[slot] = rows, length
        return scores

    @torch.inference_mode()
    def step(self, turns: Sequence[StepInput]) -> list[Logits]:
        """Logits of the next token of each utterance, each (rows, vocab). All are taken, or none is."""
        for turn in turns:
            check_capacity(self.lengths[turn.slot] + 1, self.capacity)
        most = MAX_TOKENS // self.rows_per_slot if self.batched else 1
        scores = [own for at in range(0, len(turns), most) for own in self._run(turns[at : at + most])]
        for turn in turns:
            self.lengths[turn.slot] += 1
        return [own.numpy() for own in scores]

    def move(self, source: int, target: int) -> None:
        """Bring an utterance's memory to another slot."""
        length = self.lengths[source]
        for row in range(self.rows[source]):
            old = self._own(source * self.rows_per_slot + row, length)
            for name, own in self._own(target * self.rows_per_slot + row, length).items():
                own[:] = old[name]
        self.rows[target], self.lengths[target] = self.rows[source], length
        self.rows[source], self.lengths[source] = 0, 0

    def release(self, slot: int) -> None:
        """Do nothing: the next prompt overwrites the slot."""

    def reset(self, slot: int) -> None:
        """After a fault: nothing of the slot, nor of the prompts that were kept, is used again."""
        first = slot * self.rows_per_slot
        for part in self.pool.values():
            part[first : first + self.rows_per_slot] = 0
        self._prefix_cache.clear()

    def _run(self, turns: Sequence[StepInput]) -> list[Tensor]:
        """One token more of each."""
        counts = [self.rows[turn.slot] for turn in turns]
        each = [turn for turn, count in zip(turns, counts, strict=True) for _ in range(count)]
        places = [
            turn.slot * self.rows_per_slot + row for turn in turns for row in range(self.rows[turn.slot])
        ]
        past = [self.lengths[turn.slot] for turn in each]
        program = self._program
        self._embeddings.embed(
            program.stream[: len(each)], [t.token for t in each], [t.position for t in each], past
        )
        spans = [
            (number, 1, place, behind)
            for number, (place, behind) in enumerate(zip(places, past, strict=True))
        ]
        return list(torch.split(program.run(spans, logits_tokens=len(each)), counts))

    def _read(self, row: int, x: Tensor, known: int) -> Tensor:
        """Logits (vocab,) after x (time, width), which follows `known` others."""
        scores = torch.empty(0)
        for at in range(0, len(x), MAX_TOKENS):
            part = x[at : at + MAX_TOKENS]
            self._program.stream[: len(part)] = part.numpy()
            last = at + len(part) == len(x)
            scores = self._program.run([(0, len(part), row, known + at)], logits_tokens=int(last))
        return scores[0]

    def _own(self, row: int, positions: int) -> dict[str, NDArray[np.float16]]:
        """A row's first so many positions, (layers, heads, …)."""
        blocks = -(-positions // LANES)
        keys, values = self.pool[KEYS][row, :, :, :blocks], self.pool[VALUES][row, :, :, :positions]
        return {KEYS: keys, VALUES: values}
