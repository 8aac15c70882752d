"""T3's steps on a CPU by ONNX Runtime, with weights of eight bits or as they are: the engine's Verifier.

As in the plain runner a slot is the memory of one utterance, two rows where it may be guided. The pool is one
buffer per layer; a step binds the rows it needs as they lie there, and the graph writes into them.

A prompt is not read twice. What a voice puts before the text is the same in every prompt of it, and in both
rows of a guided one; and the row that is not told the text differs between two prompts only in length. So the
rows of the latest prompt are kept, and of a new one only what follows its longest common beginning is read.
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
from nightingale.backends.shared.t3_inputs import Floats, InputEmbeddings, check_capacity, rotary_tables
from nightingale.backends.torch.runner import embed_prompt
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.runner import StepInput, VerifyInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.draft_head import TAPS
from nightingale.models.chatterbox.t3.model import T3

IDLE = 1
"""Positions past the capacity, where rows that take no part in a step may write, and odd guesses."""


class OnnxRunner:
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
        """graph: `GRAPH_FILE` of packed weights, or `exact_graph` of a T3. spare: positions past the capacity
        for guesses. threads: of the graph's own pool; as many as torch uses if not told."""
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
        self.turns: dict[str, Floats] = {}
        if (angles := rotary_tables(t3, positions)) is not None:
            # Both halves of a head turn alike, so the attention operator takes one.
            halves = (part[:, : part.shape[1] // 2] for part in angles)
            self.turns = dict(zip(("cos", "sin"), map(np.ascontiguousarray, halves), strict=True))
        self._embeddings, self._prefix_cache = InputEmbeddings(t3), PrefixCache(rows_per_slot)
        self.rows: list[int] = [0] * slots
        """rows[slot]: how many the utterance there uses."""
        self.lengths: list[int] = [0] * slots
        """lengths[slot]: how many positions it remembers."""
        self._bound: dict[tuple[int, int, int], _Bound] = {}
        self._thoughts: dict[int, tuple[int, Tensor]] = {}
        """Of each slot's latest pass: the number of its first draw, and (rows, tokens, …): see `thought`."""

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
        thoughts = torch.empty(rows, 1, (1 + TAPS) * self.t3.config.backbone.width)
        for row in range(rows):
            known = self._prefix_cache.restore(x[row], partial(self._own, first + row))
            scores[row], thoughts[row] = self._read(first + row, x[row : row + 1, known:], known)
            self._prefix_cache.store(x[row], self._own(first + row, length))
        self.rows[slot], self.lengths[slot] = rows, length
        self._thoughts[slot] = 0, thoughts
        return scores

    @torch.inference_mode()
    def step(self, turns: Sequence[StepInput]) -> list[Logits]:
        """Logits of the next token of each utterance, each (rows, vocab). All are taken, or none is."""
        for turn in turns:
            check_capacity(self.lengths[turn.slot] + 1, self.capacity)
        if self.batched and len(turns) > 1:
            scores, thoughts = self._run(0, max(turn.slot for turn in turns) + 1, turns)
            starts = [turn.slot * self.rows_per_slot for turn in turns]
            own = [
                slice(start, start + self.rows[turn.slot]) for start, turn in zip(starts, turns, strict=True)
            ]
            out = [(scores[rows], thoughts[rows]) for rows in own]
        else:
            out = [self._run(turn.slot, 1, [turn]) for turn in turns]
        for turn, (_, thought) in zip(turns, out, strict=True):
            self.lengths[turn.slot] += 1
            self._thoughts[turn.slot] = turn.position, thought
        return [scores[:, 0].numpy() for scores, _ in out]

    @torch.inference_mode()
    def verify(self, trials: Sequence[VerifyInput]) -> list[Logits]:
        """Logits after each token of each utterance, (rows, tokens, vocab); one utterance after the other.

        Of a guided one, also one row after the other: the attention operator takes several tokens after a
        past for one row only.
        """
        for trial in trials:
            check_capacity(self.lengths[trial.slot] + len(trial.tokens), self.capacity)
        passed = [[self._try(trial, row) for row in range(self.rows[trial.slot])] for trial in trials]
        out = []
        for trial, rows in zip(trials, passed, strict=True):
            self.lengths[trial.slot] += len(trial.tokens)
            scores, thoughts = (
                rows[0] if len(rows) == 1 else (torch.cat(part) for part in zip(*rows, strict=True))
            )
            self._thoughts[trial.slot] = trial.position, thoughts
            out.append(scores.numpy())
        return out

    def _try(self, trial: VerifyInput, row: int) -> tuple[Tensor, Tensor]:
        known, count = self.lengths[trial.slot], len(trial.tokens)
        # Products take rows by twos: an odd one costs as much as two. What is scored of it nobody reads.
        padded = [*trial.tokens, *[0] * (count % 2)] if count > 1 else list(trial.tokens)
        end = known + len(padded)
        bound = self._bind(trial.slot * self.rows_per_slot + row, 1, len(padded))
        places = range(trial.position, trial.position + len(padded))
        self._embeddings.embed(bound.x[0], padded, places, range(known, end))
        scores, thoughts = self._pass(bound, [end - 1])
        return scores[:, :count], thoughts[:, :count]

    def rewind(self, slot: int, count: int) -> None:
        """What stands past an utterance's length is never heard, and written over."""
        self.lengths[slot] -= count

    def capture_hidden_states(self) -> None:
        """Do nothing: the graph always returns them."""

    def hidden_states(self, slot: int, draw: int) -> Floats:
        first, thoughts = self._thoughts[slot]
        hidden: Floats = thoughts[:, draw - first].numpy()
        return hidden

    def move(self, source: int, target: int) -> None:
        """Bring an utterance's memory to another slot."""
        rows, length = self.rows[source], self.lengths[source]
        old, new = source * self.rows_per_slot, target * self.rows_per_slot
        for part in self.pool.values():
            part[new : new + rows, :, :length] = part[old : old + rows, :, :length]
        self.rows[target], self.lengths[target] = rows, length
        self.rows[source], self.lengths[source] = 0, 0
        self._thoughts[target] = self._thoughts.pop(source)

    def release(self, slot: int) -> None:
        """Do nothing: the next prompt overwrites the slot."""

    def reset(self, slot: int) -> None:
        """After a fault: nothing of the slot, nor of the prompts that were kept, is used again."""
        first = slot * self.rows_per_slot
        for part in self.pool.values():
            part[first : first + self.rows_per_slot] = 0
        self._prefix_cache.entries.clear()

    def _run(self, slot: int, slots: int, turns: Sequence[StepInput]) -> tuple[Tensor, Tensor]:
        """One token more for `slots` slots from `slot` on; what those without a turn compute is not read."""
        each = self.rows_per_slot if slots > 1 else self.rows[slot]
        bound = self._bind(slot * self.rows_per_slot, slots * each, 1)
        own = {turn.slot: turn for turn in turns}
        ids, at, last = [], [], []
        for number in range(slot, slot + slots):
            turn = own.get(number)
            ids += [turn.token if turn else 0] * each
            at += [turn.position if turn else 0] * each
            last += [self.lengths[number]] * each
        self._embeddings.embed(bound.x[:, 0], ids, at, last)
        return self._pass(bound, last)

    def _pass(self, bound: _Bound, last: list[int]) -> tuple[Tensor, Tensor]:
        """Logits (rows, asked, vocab) and thoughts (rows, asked, …) of what was written into the buffers.

        last: where each row ends.
        """
        bound.last[:] = last
        bound.total[:] = max(last) + 1
        self.session.run_with_iobinding(bound.binding)
        return torch.from_numpy(bound.scores.copy()), torch.from_numpy(bound.thoughts.copy())

    def _read(self, row: int, x: Tensor, known: int) -> tuple[Tensor, Tensor]:
        """Logits (vocab,) and thoughts (1, …) after x (1, time, width), which follows `known` others."""
        bound = _Bound(self, row, 1, x.numpy(), asked=[-1])
        scores, thoughts = self._pass(bound, [known + x.shape[1] - 1])
        return scores[0, 0], thoughts[0]

    def _own(self, row: int, positions: int) -> dict[str, Floats]:
        """A row's first so many positions, (heads, positions, head width) each."""
        return {name: part[row, :, :positions] for name, part in self.pool.items()}

    def _bind(self, row: int, rows: int, tokens: int) -> _Bound:
        """Buffers are bound once for each group of rows, and then only written."""
        if (row, rows, tokens) not in self._bound:
            x = np.zeros((rows, tokens, self.t3.config.backbone.width), np.float32)
            self._bound[row, rows, tokens] = _Bound(self, row, rows, x, asked=range(tokens))
        return self._bound[row, rows, tokens]


class _Bound:
    """The buffers of a run over `rows` rows from `row` on, bound to the graph's inputs and outputs."""

    def __init__(self, runner: OnnxRunner, row: int, rows: int, x: Floats, *, asked: Sequence[int]) -> None:
        """asked: which of the tokens of x are scored."""
        config = runner.t3.config
        self.x, self.asked = x, np.array(asked, np.int64)
        self.last, self.total = np.zeros(rows, np.int32), np.zeros(1, np.int32)
        self.scores: Floats = np.zeros((rows, len(asked), config.speech_vocab), np.float32)
        thoughts = (rows, len(asked), (1 + TAPS) * config.backbone.width)
        self.thoughts: Floats = np.zeros(thoughts, np.float32)
        self.binding = runner.session.io_binding()
        own: dict[str, NDArray[Any]] = {
            "x": x,
            "seqlens_k": self.last,
            "total_sequence_length": self.total,
            "logit_positions": self.asked,
        }
        for name, value in (own | runner.turns).items():
            bind(self.binding.bind_input, name, value)
        bind(self.binding.bind_output, "logits", self.scores)
        bind(self.binding.bind_output, "hidden_states", self.thoughts)
        for name, part in runner.pool.items():
            bind(self.binding.bind_input, name, part[row : row + rows])
            bind(self.binding.bind_output, f"new.{name}", part[row : row + rows])


def bind(how: Any, name: str, value: NDArray[Any]) -> None:
    """how: a binding's `bind_input` or `bind_output`."""
    how(name, "cpu", 0, value.dtype.type, value.shape, value.ctypes.data)


def exact_graph(t3: T3) -> bytes:
    """T3's step in float32, weights and all."""
    weights = t3.state_dict()
    return T3StepGraph(t3.config, weights.__getitem__, int8=False).build()


def open_session(graph: Path | bytes, threads: int) -> Any:
    """ONNX Runtime over the graph, with threads of its own."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Its threads wait for the next operation by spinning, but not for the next step: others need the cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    model = graph if isinstance(graph, bytes) else str(graph)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
