"""T3's steps on a CPU by ONNX Runtime, in float32 or with int8 weights.

The pool of KV caches has one buffer per layer; a step binds the rows it needs in place, and the graph writes its
new keys and values into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightingale.backends.onnx.embeddings import Embeddings
from nightingale.backends.onnx.network_graph import NEW
from nightingale.backends.onnx.numpy_weights import Floats
from nightingale.backends.onnx.streaming_session import Binding, create_session
from nightingale.backends.onnx.t3_graph import QKV, T3StepGraph
from nightingale.backends.shared.slot_runner import SlotRunner
from nightingale.decoding.attention_trace import AttentionTrace
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.runner import StepInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.models.layers.aligned_arrays import page_aligned_zeros
from nightingale.models.layers.capacity import check_capacity

IDLE = 1
"""Positions past the capacity, where rows that take no part in a step may write."""


class OnnxRunner(SlotRunner):
    """Run T3's step graph over a pool of KV caches; implements `LogitsRunner`."""

    def __init__(
        self,
        config: T3Config,
        embeddings: Embeddings,
        graph: T3StepGraph | Path,
        *,
        threads: int,
        slots: int,
        rows_per_slot: int,
        capacity: int,
        batched: bool,
    ) -> None:
        """Open the graph and allocate the KV caches.

        Args:
            config: Of the T3.
            embeddings: Of the T3.
            graph: Its step, or the file of one whose weights are packed beside it.
            threads: Threads of the session.
            slots: Utterances at once.
            rows_per_slot: Two where an utterance may be guided.
            capacity: Positions of the longest utterance, its prompt included.
            batched: Step all utterances in one pass.
        """
        backbone, positions = config.backbone, capacity + IDLE
        shape = (slots * rows_per_slot, backbone.heads, positions, backbone.width // backbone.heads)
        names = [f"{name}.{layer}" for layer in range(backbone.layers) for name in ("keys", "values")]
        super().__init__(
            {name: page_aligned_zeros(shape) for name in names},
            slots=slots,
            rows_per_slot=rows_per_slot,
            capacity=capacity,
            batched=batched,
            # Without a clip there is next to nothing to share, and a product of one row rounds otherwise than
            # that of a whole prompt: a sentence that is spoken twice would not give the same samples.
            has_prefix_cache=config.prompt_tokens > 0,
        )
        self.config, self.embeddings, self._rope = config, embeddings, embeddings.rotary_tables(positions)
        self.session = create_session(graph, threads)
        self._bound: dict[tuple[int, int, bool], Binding] = {}

    def prefill(self, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        del max_tokens
        self.traces.begin(slot, prompt.trace)
        logits = self.prefill_embeddings(slot, self.embeddings.prompt(prompt))
        if prompt.trace is not None:
            self._trace_keys(slot, prompt.trace)
        return logits

    def prefill_embeddings(self, slot: int, prompt: Floats) -> Logits:
        """Read embeddings (rows, time, width) into a slot; return the logits (rows, vocab) after them."""
        return np.stack(self.read_prompt(slot, prompt, self.embeddings.absolute))

    def step(self, inputs: Sequence[StepInput]) -> list[Logits]:
        """Return the next logits (rows, vocab) of each utterance. If this raises, no slot has changed."""
        for one in inputs:
            check_capacity(self.lengths[one.slot] + 1, self.capacity)
        if self.batched and len(inputs) > 1:
            logits = self._step(0, max(one.slot for one in inputs) + 1, inputs)
            starts = [one.slot * self.rows_per_slot for one in inputs]
            out = [
                logits[start : start + self.rows[one.slot]] for start, one in zip(starts, inputs, strict=True)
            ]
        else:
            out = [self._step(one.slot, 1, [one]) for one in inputs]
        for one in inputs:
            self.lengths[one.slot] += 1
        return out

    def _step(self, slot: int, slots: int, inputs: Sequence[StepInput]) -> Logits:
        """Step `slots` slots from `slot` on; the results of slots without an input are not read."""
        each = self.rows_per_slot if slots > 1 else self.rows[slot]
        traced = [one for one in inputs if one.slot in self.traces]
        bound = self._bind(slot * self.rows_per_slot, slots * each, traced=bool(traced))
        own = {one.slot: one for one in inputs}
        idle = StepInput(0, 0, 0)
        by_row = [number for number in range(slot, slot + slots) for _ in range(each)]
        rows = [own.get(number, idle) for number in by_row]
        last = [self.lengths[number] for number in by_row]
        x = bound.arrays["x"][:, 0]
        self._embed(x, [row.token for row in rows], [row.position for row in rows], last)
        passed = self._pass(bound, last)
        for one in traced:
            self._trace_queries(one.slot, bound, (one.slot - slot) * each, slice(1), one.position)
        return passed

    def _read(self, row: int, x: Floats, known: int) -> Logits:
        slot, other_row = divmod(row, self.rows_per_slot)
        traced = not other_row and slot in self.traces
        bound = self._binding(row, np.ascontiguousarray(x[None]), traced=traced)
        logits = self._pass(bound, [known + len(x) - 1])
        if traced:
            self._trace_queries(slot, bound, 0, slice(len(x) - 1, len(x)), 0)
        last: Logits = logits[0]
        return last

    def _trace_keys(self, slot: int, trace: AttentionTrace) -> None:
        """Give a trace the keys of its text, and the rotary tables from the query before the first token on."""
        row, length = slot * self.rows_per_slot, self.lengths[slot]
        text = trace.text_positions(length)
        keys = [self.pool[f"keys.{layer}"][row, head, text] for layer, head in trace.heads]
        trace.set_keys(keys, tuple(table[length - 1 :] for table in self._rope.values()))

    def _trace_queries(self, slot: int, bound: Binding, row: int, tokens: slice, first: int) -> None:
        """Give a trace the queries of some tokens of a pass, the first of which is its row `first`."""
        trace, head_dim = self.traces[slot], self.config.backbone.width // self.config.backbone.heads
        queries = [
            bound.arrays[f"{QKV}{layer}"][row, tokens, head * head_dim : (head + 1) * head_dim]
            for layer, head in trace.heads
        ]
        trace.set_queries(first, queries)

    def _embed(
        self, x: Floats, tokens: Sequence[int], speech_positions: Sequence[int], positions: Sequence[int]
    ) -> None:
        """Write what the first layer reads of speech tokens (n) into x (n, width)."""
        x[:] = self.embeddings.speech(tokens, speech_positions)
        if self.embeddings.absolute is not None:
            x += self.embeddings.absolute[list(positions)]

    def _pass(self, bound: Binding, last: list[int]) -> Logits:
        """Run the graph over bound arrays; return the logits (rows, vocab) of the last token of each row.

        last: The last position of each row.
        """
        arrays = bound.arrays
        arrays["seqlens_k"][:] = last
        arrays["total_sequence_length"][:] = max(last) + 1
        bound.run()
        logits: Logits = arrays["logits"][:, 0].copy()
        return logits

    def _views(self, row: int, positions: int) -> dict[str, Floats]:
        return {name: part[row, :, :positions] for name, part in self.pool.items()}

    def _bind(self, row: int, rows: int, *, traced: bool) -> Binding:
        """Return the arrays of a group of rows, which are bound once."""
        key = row, rows, traced
        if key not in self._bound:
            x = np.zeros((rows, 1, self.config.backbone.width), np.float32)
            self._bound[key] = self._binding(row, x, traced=traced)
        return self._bound[key]

    def _binding(self, row: int, x: Floats, *, traced: bool) -> Binding:
        """Bind x and the rows of the pool from `row` on; the logits of the last position in x are wanted.

        traced: Also bind what alignment heads are read from.
        """
        rows, width = len(x), self.config.backbone.width
        pool = {name: part[row : row + rows] for name, part in self.pool.items()}
        inputs: dict[str, NDArray[Any]] = {
            "x": x,
            "seqlens_k": np.zeros(rows, np.int32),
            "total_sequence_length": np.zeros(1, np.int32),
            "logit_positions": np.array([-1], np.int64),
        }
        outputs = {
            "logits": np.zeros((rows, 1, self.config.speech_vocab), np.float32),
            **{NEW + name: part for name, part in pool.items()},
        }
        for layer in {layer for layer, _ in self.config.traced_heads} if traced else ():
            outputs[f"{QKV}{layer}"] = np.zeros((*x.shape[:2], 3 * width), np.float32)
        return Binding(self.session, {**inputs, **self._rope, **pool}, outputs)
