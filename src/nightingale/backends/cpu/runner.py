"""T3's decode steps in int8 on a CPU, with weights of 8 or 4 bits, by generated machine code.

A row of the KV cache holds the keys and values of one sequence in all layers. Only rows that take part in a
step are computed, and of a prompt only what follows a cached prefix. Every token of a pass is computed alone, in
the same order of sums whatever else is in the pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from nightingale.decoding.attention_trace import AttentionTrace
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.runner import StepInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.capacity import check_capacity


class Int8Runner(SlotRunner):
    """Run T3's step program over a pool of KV caches; implements `LogitsRunner`."""

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
        rows = slots * rows_per_slot
        self._program = T3Program(t3, packed, rows=rows, capacity=capacity, threads=threads)
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
        self.traces.begin(slot, prompt.trace)
        x = embed_prompt(self._t3, prompt, max_new_tokens=self._max_new_tokens)
        logits = self.prefill_embeddings(slot, x.float().numpy())
        if prompt.trace is not None:
            self._trace_keys(slot, prompt.trace)
        return logits

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
        """Run one pass of some utterances together."""
        rows = [(turn, row) for turn in turns for row in range(self.rows[turn.slot])]
        past = [self.lengths[turn.slot] for turn, _ in rows]
        sequences = [
            (number, 1, turn.slot * self.rows_per_slot + row, length)
            for number, ((turn, row), length) in enumerate(zip(rows, past, strict=True))
        ]
        tokens, positions = [turn.token for turn, _ in rows], [turn.position for turn, _ in rows]
        self._embeddings.embed(self._program.stream[: len(rows)], tokens, positions, past)
        traces = [self.traces[turn.slot] for turn in turns if turn.slot in self.traces]
        queries = self._query_buffers(traces, len(rows))
        logits = self._pass(sequences, logits_tokens=len(rows), queries=queries)
        out, first = [], 0
        for turn in turns:
            if turn.slot in self.traces:
                self._trace_queries(self.traces[turn.slot], queries, slice(first, first + 1), turn.position)
            out.append(logits[first : first + self.rows[turn.slot]])
            first += self.rows[turn.slot]
        return out

    def _pass(
        self,
        sequences: Sequence[tuple[int, int, int, int]],
        *,
        logits_tokens: int,
        queries: Mapping[int, Floats],
    ) -> Logits:
        """Run the program; return the logits of the last tokens."""
        logits: Logits = self._program.run(sequences, logits_tokens=logits_tokens, queries=queries).numpy()
        return logits

    def _read(self, row: int, x: Floats, known: int) -> Logits:
        slot, other_row = divmod(row, self.rows_per_slot)
        trace = None if other_row else self.traces.get(slot)
        for first in range(0, len(x), MAX_TOKENS):
            part = x[first : first + MAX_TOKENS]
            self._program.stream[: len(part)] = part
            is_last = first + len(part) == len(x)
            sequence = (0, len(part), row, known + first)
            queries = self._query_buffers([trace] if trace is not None and is_last else [], len(part))
            logits = self._pass([sequence], logits_tokens=int(is_last), queries=queries)
        if trace is not None:
            self._trace_queries(trace, queries, slice(len(part) - 1, len(part)), 0)
        last: Logits = logits[0]
        return last

    def _query_buffers(self, traces: Sequence[AttentionTrace], tokens: int) -> dict[int, Floats]:
        """Return buffers for the queries of the layers that are traced in a pass."""
        width = self._t3.config.backbone.width
        return {layer: np.zeros((tokens, width), np.float32) for one in traces for layer in one.layers}

    def _trace_keys(self, slot: int, trace: AttentionTrace) -> None:
        """Give a trace the keys of its text, and the rotary tables from the query before the first token on."""
        row, length = slot * self.rows_per_slot, self.lengths[slot]
        text, head_dim = trace.text_positions(length), self._head_dim
        keys = [
            # Blocks of positions side by side.
            self.pool["keys"][row, layer, head].transpose(0, 2, 1).reshape(-1, head_dim)[text]
            for layer, head in trace.heads
        ]
        rotary = self._program.rotary or ()
        trace.set_keys(keys, [table[length - 1 :, : head_dim // 2] for table in rotary])

    def _trace_queries(
        self, trace: AttentionTrace, queries: Mapping[int, Floats], tokens: slice, first: int
    ) -> None:
        """Give a trace the queries of some tokens of a pass, the first of which is its row `first`."""
        size = self._head_dim
        trace.set_queries(
            first, [queries[layer][tokens, head * size : (head + 1) * size] for layer, head in trace.heads]
        )

    @property
    def _head_dim(self) -> int:
        backbone = self._t3.config.backbone
        return backbone.width // backbone.heads

    def _views(self, row: int, positions: int) -> dict[str, NDArray[Any]]:
        """Return the first positions of a row's keys and values, (layers, heads, …)."""
        blocks = -(-positions // LANES)
        return {
            "keys": self.pool["keys"][row, :, :, :blocks],
            "values": self.pool["values"][row, :, :, :positions],
        }
