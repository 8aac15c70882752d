"""T3's steps on a CPU by ONNX Runtime, in float32 or with int8 weights.

A slot is the KV cache of one utterance, two rows where it may be guided. The pool has one buffer per layer; a
step binds the rows it needs in place, and the graph writes its new keys and values into them.

Prompts share prefixes: the voice's part precedes the text in every prompt and in both rows of a guided one, and
unguided rows differ only in length. So the rows of the latest prompts are kept (`PrefixCache`), and a prefill
reads only what follows the longest common prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.onnx.graph import T3StepGraph
from nightingale.backends.shared.aligned_arrays import page_aligned_zeros
from nightingale.backends.shared.prefix_cache import PrefixCache
from nightingale.backends.shared.t3_inputs import Floats, InputEmbeddings, rotary_tables
from nightingale.backends.torch.runner import embed_prompt
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.runner import StepInput, VerifyInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.draft_head import TAPS
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_cache import check_capacity

IDLE = 1
"""Positions past the capacity, where rows that take no part in a step and padding may write."""


class OnnxRunner:
    """Run T3's step graph over a pool of KV caches; implements `DraftVerifier`."""

    def __init__(
        self,
        t3: T3,
        graph: Path | bytes,
        *,
        slots: int,
        rows_per_slot: int,
        capacity: int,
        batched: bool,
        max_new_tokens: int,
        spare: int = 0,
        threads: int | None = None,
    ) -> None:
        """Open the graph and allocate the KV caches.

        Args:
            graph: The `GRAPH_FILE` of packed weights, or the `exact_graph` of a T3.
            spare: Positions past the capacity for drafted tokens.
            threads: Threads of the session; as many as torch uses by default.
        """
        self.t3, self.rows_per_slot, self.batched = t3, rows_per_slot, batched
        self.capacity = capacity + spare
        self.session = open_session(graph, torch.get_num_threads() if threads is None else threads)
        self._max_new_tokens = max_new_tokens
        backbone = t3.config.backbone
        positions = self.capacity + IDLE
        shape = (slots * rows_per_slot, backbone.heads, positions, backbone.width // backbone.heads)
        self.pool: dict[str, Floats] = {
            f"{name}.{layer}": page_aligned_zeros(shape)
            for layer in range(backbone.layers)
            for name in ("keys", "values")
        }
        self.rope: dict[str, Floats] = {}
        if (angles := rotary_tables(t3, positions)) is not None:
            # RoPE rotates both halves of a head alike, so the attention operator takes one table for both.
            tables = (part[:, : part.shape[1] // 2] for part in angles)
            self.rope = dict(zip(("cos", "sin"), map(np.ascontiguousarray, tables), strict=True))
        self._embeddings, self._prefix_cache = InputEmbeddings(t3), PrefixCache(rows_per_slot)
        self.rows: list[int] = [0] * slots
        """rows[slot]: the rows that its utterance uses."""
        self.lengths: list[int] = [0] * slots
        """lengths[slot]: the positions that its KV cache holds."""
        self._bound: dict[tuple[int, int, int], _Bound] = {}
        self._hidden: dict[int, tuple[int, Tensor]] = {}
        """The latest pass of each slot: the number of its first draw, and its hidden states (rows, tokens, …)."""

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
        logits = torch.empty(rows, self.t3.config.speech_vocab)
        hidden = torch.empty(rows, 1, (1 + TAPS) * self.t3.config.backbone.width)
        for row in range(rows):
            known = self._prefix_cache.restore(x[row], partial(self._own, first + row))
            logits[row], hidden[row] = self._read(first + row, x[row : row + 1, known:], known)
            self._prefix_cache.store(x[row], self._own(first + row, length))
        self.rows[slot], self.lengths[slot] = rows, length
        self._hidden[slot] = 0, hidden
        return logits

    @torch.inference_mode()
    def step(self, inputs: Sequence[StepInput]) -> list[Logits]:
        """Return the next logits (rows, vocab) of each utterance. If this raises, no slot has changed."""
        for one in inputs:
            check_capacity(self.lengths[one.slot] + 1, self.capacity)
        if self.batched and len(inputs) > 1:
            logits, hidden = self._run(0, max(one.slot for one in inputs) + 1, inputs)
            starts = [one.slot * self.rows_per_slot for one in inputs]
            own = [
                slice(start, start + self.rows[one.slot]) for start, one in zip(starts, inputs, strict=True)
            ]
            out = [(logits[rows], hidden[rows]) for rows in own]
        else:
            out = [self._run(one.slot, 1, [one]) for one in inputs]
        for one, (_, hidden) in zip(inputs, out, strict=True):
            self.lengths[one.slot] += 1
            self._hidden[one.slot] = one.position, hidden
        return [logits[:, 0].numpy() for logits, _ in out]

    @torch.inference_mode()
    def verify(self, inputs: Sequence[VerifyInput]) -> list[Logits]:
        """Return the logits (rows, tokens, vocab) after each token of each utterance.

        Rows run one after the other: with a KV cache before them, the attention operator takes several tokens
        of one row only.
        """
        for one in inputs:
            check_capacity(self.lengths[one.slot] + len(one.tokens), self.capacity)
        passed = [[self._verify_row(one, row) for row in range(self.rows[one.slot])] for one in inputs]
        out = []
        for one, rows in zip(inputs, passed, strict=True):
            self.lengths[one.slot] += len(one.tokens)
            logits, hidden = (
                rows[0] if len(rows) == 1 else (torch.cat(part) for part in zip(*rows, strict=True))
            )
            self._hidden[one.slot] = one.position, hidden
            out.append(logits.numpy())
        return out

    def _verify_row(self, one: VerifyInput, row: int) -> tuple[Tensor, Tensor]:
        known, count = self.lengths[one.slot], len(one.tokens)
        # Matrix products take rows in pairs: an odd one costs as much as two. The padding's logits are not read.
        padded = [*one.tokens, *[0] * (count % 2)] if count > 1 else list(one.tokens)
        end = known + len(padded)
        bound = self._bind(one.slot * self.rows_per_slot + row, 1, len(padded))
        places = range(one.position, one.position + len(padded))
        self._embeddings.embed(bound.x[0], padded, places, range(known, end))
        logits, hidden = self._pass(bound, [end - 1])
        return logits[:, :count], hidden[:, :count]

    def rewind(self, slot: int, count: int) -> None:
        self.lengths[slot] -= count

    def capture_hidden_states(self) -> None:
        """Do nothing: the graph always returns them."""

    def hidden_states(self, slot: int, draw: int) -> Floats:
        first, states = self._hidden[slot]
        hidden: Floats = states[:, draw - first].numpy()
        return hidden

    def move(self, source: int, target: int) -> None:
        rows, length = self.rows[source], self.lengths[source]
        old, new = source * self.rows_per_slot, target * self.rows_per_slot
        for part in self.pool.values():
            part[new : new + rows, :, :length] = part[old : old + rows, :, :length]
        self.rows[target], self.lengths[target] = rows, length
        self.rows[source], self.lengths[source] = 0, 0
        self._hidden[target] = self._hidden.pop(source)

    def release(self, slot: int) -> None:
        """Do nothing: the next prompt overwrites the slot."""

    def reset(self, slot: int) -> None:
        """Clear the slot and all cached prompts, so that nothing from before an error is used again."""
        first = slot * self.rows_per_slot
        for part in self.pool.values():
            part[first : first + self.rows_per_slot] = 0
        self._prefix_cache.entries.clear()

    def _run(self, slot: int, slots: int, inputs: Sequence[StepInput]) -> tuple[Tensor, Tensor]:
        """Step `slots` slots from `slot` on; the results of slots without an input are not read."""
        each = self.rows_per_slot if slots > 1 else self.rows[slot]
        bound = self._bind(slot * self.rows_per_slot, slots * each, 1)
        own = {one.slot: one for one in inputs}
        ids, at, last = [], [], []
        for number in range(slot, slot + slots):
            one = own.get(number)
            ids += [one.token if one else 0] * each
            at += [one.position if one else 0] * each
            last += [self.lengths[number]] * each
        self._embeddings.embed(bound.x[:, 0], ids, at, last)
        return self._pass(bound, last)

    def _pass(self, bound: _Bound, last: list[int]) -> tuple[Tensor, Tensor]:
        """Run the graph over the bound buffers; return logits and hidden states, (rows, asked, …) each.

        last: The last position of each row.
        """
        bound.last[:] = last
        bound.total[:] = max(last) + 1
        self.session.run_with_iobinding(bound.binding)
        return torch.from_numpy(bound.logits.copy()), torch.from_numpy(bound.hidden.copy())

    def _read(self, row: int, x: Tensor, known: int) -> tuple[Tensor, Tensor]:
        """Read x (1, time, width), which follows `known` positions; return its last logits and hidden state."""
        bound = _Bound(self, row, 1, x.numpy(), asked=[-1])
        logits, hidden = self._pass(bound, [known + x.shape[1] - 1])
        return logits[0, 0], hidden[0]

    def _own(self, row: int, positions: int) -> dict[str, Floats]:
        """Return the first positions of a row, (heads, positions, head width) for each buffer."""
        return {name: part[row, :, :positions] for name, part in self.pool.items()}

    def _bind(self, row: int, rows: int, tokens: int) -> _Bound:
        """Return the buffers of a group of rows, which are bound once."""
        if (row, rows, tokens) not in self._bound:
            x = np.zeros((rows, tokens, self.t3.config.backbone.width), np.float32)
            self._bound[row, rows, tokens] = _Bound(self, row, rows, x, asked=range(tokens))
        return self._bound[row, rows, tokens]


class _Bound:
    """The buffers of a run over `rows` rows from `row` on, bound to the graph's inputs and outputs."""

    def __init__(self, runner: OnnxRunner, row: int, rows: int, x: Floats, *, asked: Sequence[int]) -> None:
        """asked: The positions in x whose logits are computed."""
        config = runner.t3.config
        self.x, self.asked = x, np.array(asked, np.int64)
        self.last, self.total = np.zeros(rows, np.int32), np.zeros(1, np.int32)
        self.logits: Floats = np.zeros((rows, len(asked), config.speech_vocab), np.float32)
        hidden = (rows, len(asked), (1 + TAPS) * config.backbone.width)
        self.hidden: Floats = np.zeros(hidden, np.float32)
        self.binding = runner.session.io_binding()
        own: dict[str, NDArray[Any]] = {
            "x": x,
            "seqlens_k": self.last,
            "total_sequence_length": self.total,
            "logit_positions": self.asked,
        }
        for name, value in (own | runner.rope).items():
            bind(self.binding.bind_input, name, value)
        bind(self.binding.bind_output, "logits", self.logits)
        bind(self.binding.bind_output, "hidden_states", self.hidden)
        for name, part in runner.pool.items():
            bind(self.binding.bind_input, name, part[row : row + rows])
            bind(self.binding.bind_output, f"new.{name}", part[row : row + rows])


def bind(how: Any, name: str, value: NDArray[Any]) -> None:
    """Bind an array by `bind_input` or `bind_output` of an I/O binding."""
    how(name, "cpu", 0, value.dtype.type, value.shape, value.ctypes.data)


def exact_graph(t3: T3) -> bytes:
    """Return the graph of T3's step in float32, weights included."""
    weights = t3.state_dict()
    return T3StepGraph(t3.config, weights.__getitem__, int8=False).build()


def open_session(graph: Path | bytes, threads: int) -> Any:
    """Open a graph in ONNX Runtime, with threads of its own."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Its threads wait for the next operation by spinning, but not for the next step: others need the cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    model = graph if isinstance(graph, bytes) else str(graph)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
