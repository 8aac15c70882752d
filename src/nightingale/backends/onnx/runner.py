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
from nightingale.decoding.runner import StepInput, VerifyInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.config import TAPS, T3Config
from nightingale.models.layers.aligned_arrays import page_aligned_zeros
from nightingale.models.layers.capacity import check_capacity

IDLE = 1
"""Positions past the capacity, where rows that take no part in a step and padding may write."""


class OnnxRunner(SlotRunner[tuple[Logits, Floats]]):
    """Run T3's step graph over a pool of KV caches; implements `DraftVerifier`."""

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
        spare: int = 0,
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
            spare: Positions past the capacity for drafted tokens.
        """
        backbone, positions = config.backbone, capacity + spare + IDLE
        shape = (slots * rows_per_slot, backbone.heads, positions, backbone.width // backbone.heads)
        names = [f"{name}.{layer}" for layer in range(backbone.layers) for name in ("keys", "values")]
        super().__init__(
            {name: page_aligned_zeros(shape) for name in names},
            slots=slots,
            rows_per_slot=rows_per_slot,
            capacity=capacity + spare,
            batched=batched,
            # Without a clip there is next to nothing to share, and a product of one row rounds otherwise than
            # that of a whole prompt: a sentence that is spoken twice would not give the same samples.
            has_prefix_cache=config.prompt_tokens > 0,
        )
        self.config, self.embeddings, self._rope = config, embeddings, embeddings.rotary_tables(positions)
        self.session = create_session(graph, threads)
        self._has_hidden_states = "hidden_states" in [output.name for output in self.session.get_outputs()]
        self._bound: dict[tuple[int, int, int, bool], Binding] = {}
        self._hidden: dict[int, tuple[int, Floats]] = {}
        """The latest pass of each slot: the number of its first draw, and its hidden states (rows, tokens, …)."""

    def prefill(self, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        del max_tokens
        self.traces.begin(slot, prompt.trace)
        logits = self.prefill_embeddings(slot, self.embeddings.prompt(prompt))
        if prompt.trace is not None:
            self._trace_keys(slot, prompt.trace)
        return logits

    def prefill_embeddings(self, slot: int, prompt: Floats) -> Logits:
        """Read embeddings (rows, time, width) into a slot; return the logits (rows, vocab) after them."""
        logits, hidden = _concatenate(self.read_prompt(slot, prompt, self.embeddings.absolute))
        self._hidden[slot] = 0, hidden
        return logits[:, 0]

    def step(self, inputs: Sequence[StepInput]) -> list[Logits]:
        """Return the next logits (rows, vocab) of each utterance. If this raises, no slot has changed."""
        for one in inputs:
            check_capacity(self.lengths[one.slot] + 1, self.capacity)
        if self.batched and len(inputs) > 1:
            logits, hidden = self._step(0, max(one.slot for one in inputs) + 1, inputs)
            starts = [one.slot * self.rows_per_slot for one in inputs]
            own = [
                slice(start, start + self.rows[one.slot]) for start, one in zip(starts, inputs, strict=True)
            ]
            out = [(logits[rows], hidden[rows]) for rows in own]
        else:
            out = [self._step(one.slot, 1, [one]) for one in inputs]
        for one, (_, hidden) in zip(inputs, out, strict=True):
            self.lengths[one.slot] += 1
            self._hidden[one.slot] = one.position, hidden
        return [logits[:, 0] for logits, _ in out]

    def verify(self, inputs: Sequence[VerifyInput]) -> list[Logits]:
        """Return the logits (rows, tokens, vocab) after each token of each utterance.

        Rows run one after the other: with a KV cache before them, the attention operator takes several tokens
        of one row only.
        """
        for one in inputs:
            check_capacity(self.lengths[one.slot] + len(one.tokens), self.capacity)
        passed = [
            _concatenate([self._verify_row(one, row) for row in range(self.rows[one.slot])]) for one in inputs
        ]
        for one, (_, hidden) in zip(inputs, passed, strict=True):
            self.lengths[one.slot] += len(one.tokens)
            self._hidden[one.slot] = one.position, hidden
        return [logits for logits, _ in passed]

    def rewind(self, slot: int, count: int) -> None:
        self.lengths[slot] -= count

    def capture_hidden_states(self) -> None:
        """Do nothing: a graph with this output always returns them."""
        assert self._has_hidden_states

    def hidden_states(self, slot: int, draw: int) -> Floats:
        first, states = self._hidden[slot]
        return states[:, draw - first]

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self._hidden[target] = self._hidden.pop(source)

    def _step(self, slot: int, slots: int, inputs: Sequence[StepInput]) -> tuple[Logits, Floats]:
        """Step `slots` slots from `slot` on; the results of slots without an input are not read."""
        each = self.rows_per_slot if slots > 1 else self.rows[slot]
        traced = [one for one in inputs if one.slot in self.traces]
        bound = self._bind(slot * self.rows_per_slot, slots * each, 1, traced=bool(traced))
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

    def _verify_row(self, one: VerifyInput, row: int) -> tuple[Logits, Floats]:
        known, count = self.lengths[one.slot], len(one.tokens)
        # Matrix products take rows in pairs: an odd one costs as much as two. The padding's logits are not read.
        padded = [*one.tokens, *[0] * (count % 2)] if count > 1 else list(one.tokens)
        end = known + len(padded)
        traced = row == 0 and one.slot in self.traces
        bound = self._bind(one.slot * self.rows_per_slot + row, 1, len(padded), traced=traced)
        places = range(one.position, one.position + len(padded))
        self._embed(bound.arrays["x"][0], padded, places, range(known, end))
        logits, hidden = self._pass(bound, [end - 1])
        if traced:
            self._trace_queries(one.slot, bound, 0, slice(count), one.position)
        return logits[:, :count], hidden[:, :count]

    def _read(self, row: int, x: Floats, known: int) -> tuple[Logits, Floats]:
        slot, other_row = divmod(row, self.rows_per_slot)
        traced = not other_row and slot in self.traces
        bound = self._binding(row, np.ascontiguousarray(x[None]), [-1], traced=traced)
        passed = self._pass(bound, [known + len(x) - 1])
        if traced:
            self._trace_queries(slot, bound, 0, slice(len(x) - 1, len(x)), 0)
        return passed

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

    def _pass(self, bound: Binding, last: list[int]) -> tuple[Logits, Floats]:
        """Run the graph over bound arrays; return logits and hidden states, (rows, asked, …) each.

        last: The last position of each row.
        """
        arrays = bound.arrays
        arrays["seqlens_k"][:] = last
        arrays["total_sequence_length"][:] = max(last) + 1
        bound.run()
        logits = arrays["logits"].copy()
        return logits, arrays["hidden_states"].copy() if self._has_hidden_states else logits[..., :0]

    def _views(self, row: int, positions: int) -> dict[str, Floats]:
        return {name: part[row, :, :positions] for name, part in self.pool.items()}

    def _bind(self, row: int, rows: int, tokens: int, *, traced: bool) -> Binding:
        """Return the arrays of a group of rows, which are bound once."""
        key = row, rows, tokens, traced
        if key not in self._bound:
            x = np.zeros((rows, tokens, self.config.backbone.width), np.float32)
            self._bound[key] = self._binding(row, x, range(tokens), traced=traced)
        return self._bound[key]

    def _binding(self, row: int, x: Floats, asked: Sequence[int], *, traced: bool) -> Binding:
        """Bind x and the rows of the pool from `row` on; `asked` are the positions in x whose logits are wanted.

        traced: Also bind what alignment heads are read from.
        """
        rows, width = len(x), self.config.backbone.width
        pool = {name: part[row : row + rows] for name, part in self.pool.items()}
        inputs: dict[str, NDArray[Any]] = {
            "x": x,
            "seqlens_k": np.zeros(rows, np.int32),
            "total_sequence_length": np.zeros(1, np.int32),
            "logit_positions": np.array(asked, np.int64),
        }
        outputs = {
            "logits": np.zeros((rows, len(asked), self.config.speech_vocab), np.float32),
            **{NEW + name: part for name, part in pool.items()},
        }
        if self._has_hidden_states:
            outputs["hidden_states"] = np.zeros((rows, len(asked), (1 + TAPS) * width), np.float32)
        for layer in {layer for layer, _ in self.config.traced_heads} if traced else ():
            outputs[f"{QKV}{layer}"] = np.zeros((*x.shape[:2], 3 * width), np.float32)
        return Binding(self.session, {**inputs, **self._rope, **pool}, outputs)


def _concatenate(passed: Sequence[tuple[Logits, Floats]]) -> tuple[Logits, Floats]:
    """Concatenate logits and hidden states along rows."""
    if len(passed) == 1:
        return passed[0]
    logits, hidden = (np.concatenate(part) for part in zip(*passed, strict=True))
    return logits, hidden
