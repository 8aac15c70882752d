"""T3's steps on ONNX Runtime without PyTorch, for Llama models whose prompt is only embedded, such as wren.

A slot is the KV cache of one utterance, two rows where it may be guided. The pool has one buffer per layer; a
step binds the rows it needs in place, and the graph writes its new keys and values into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightingale.backends.onnx.llama_graph import LlamaStepGraph
from nightingale.backends.onnx.network_graph import NEW
from nightingale.backends.onnx.numpy_weights import Floats, PackedWeights, RowQuantized
from nightingale.backends.onnx.streaming_session import create_session
from nightingale.backends.shared.aligned_arrays import page_aligned_zeros
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.runner import StepInput, VerifyInput
from nightingale.decoding.sampling import Logits
from nightingale.errors import MemoryFull
from nightingale.models.chatterbox.t3.config import START_SPEECH, LlamaConfig, T3Config

IDLE = 1
"""Positions past the capacity, where rows that take no part in a step and padding may write."""


def unsupported_config_reason(config: T3Config) -> str | None:
    """Return why this runner cannot run a T3, or None if it can."""
    if not isinstance(config.backbone, LlamaConfig) or config.backbone.rope_scaling:
        return "its backbone is not a plain Llama"
    if config.perceiver or config.learned_positions is not None or config.head_bias:
        return "its prompt needs layers that are written in PyTorch"
    return None


class PromptEmbeddings:
    """Embed prompts and speech tokens for T3's first layer, in numpy."""

    def __init__(self, config: T3Config, weights: PackedWeights) -> None:
        self.config = config
        self._text, self._speech = weights["text_emb.weight"], weights["speech_emb.weight"]
        weight = weights["cond_enc.spkr_enc.weight"]
        self._speaker = weight.rows(slice(None)) if isinstance(weight, RowQuantized) else weight
        self._speaker_bias = weights["cond_enc.spkr_enc.bias"]

    def speech(self, tokens: Sequence[int]) -> Floats:
        return _rows(self._speech, tokens)

    def prompt(self, prompt: Prompt) -> Floats:
        """Return the embeddings (rows, time, width) of everything before the first speech token.

        They are  speaker ‖ the clip's tokens ‖ text ‖ start;  the row without text has zeros in its place.
        """
        voice = prompt.voice
        text = _rows(self._text, self.config.frame_text(prompt.text_ids))
        before = [
            (self._speaker @ voice.speaker + self._speaker_bias)[None],
            self.speech(voice.prompt_ids[: self.config.prompt_tokens].tolist()),
        ]
        start = self.speech([START_SPEECH] * self.config.starts)
        texts = [text, np.zeros_like(text)][: prompt.rows]
        return np.stack([np.concatenate([*before, own, start]) for own in texts]).astype(np.float32)


class LlamaRunner:
    """Run a T3's step graph over a pool of KV caches; verifies drafts that need no hidden states."""

    def __init__(
        self,
        config: T3Config,
        weights: PackedWeights,
        *,
        int8: bool,
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
            weights: By T3's names.
            int8: Compute with int8 weights and inputs; in float32 otherwise.
            threads: Threads of the session.
            slots: Utterances at once.
            rows_per_slot: Two where an utterance may be guided.
            capacity: Positions of the longest utterance, its prompt included.
            batched: Step all utterances in one pass.
            spare: Positions past the capacity for drafted tokens.
        """
        self.config, self.rows_per_slot, self.batched = config, rows_per_slot, batched
        self.capacity = capacity + spare
        self.session = create_session(LlamaStepGraph(config, weights, int8=int8), threads)
        self.embeddings = PromptEmbeddings(config, weights)
        backbone = config.backbone
        positions, head_dim = self.capacity + IDLE, backbone.width // backbone.heads
        shape = (slots * rows_per_slot, backbone.heads, positions, head_dim)
        self.pool: dict[str, Floats] = {
            f"{name}.{layer}": page_aligned_zeros(shape)
            for layer in range(backbone.layers)
            for name in ("keys", "values")
        }
        self.rope = rotary_tables(config, positions)
        self.rows: list[int] = [0] * slots
        """rows[slot]: the rows that its utterance uses."""
        self.lengths: list[int] = [0] * slots
        """lengths[slot]: the positions that its KV cache holds."""
        self._bound: dict[tuple[int, int, int], _Bound] = {}

    @property
    def kv_bytes(self) -> int:
        return sum(part.nbytes for part in self.pool.values())

    def prefill(self, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        del max_tokens
        return self.prefill_embeddings(slot, self.embeddings.prompt(prompt))

    def prefill_embeddings(self, slot: int, x: Floats) -> Logits:
        """Read embeddings (rows, time, width) into a slot; return the logits (rows, vocab) after them."""
        rows, length = x.shape[:2]
        self._check_capacity(length)
        logits = []
        for row in range(rows):
            bound = _Bound(self, slot * self.rows_per_slot + row, x[row : row + 1], logit_positions=[-1])
            logits.append(bound.run([length - 1])[0, 0])
        self.rows[slot], self.lengths[slot] = rows, length
        return np.stack(logits)

    def step(self, inputs: Sequence[StepInput]) -> list[Logits]:
        for one in inputs:
            self._check_capacity(self.lengths[one.slot] + 1)
        if self.batched and len(inputs) > 1:
            every = self._step(0, max(one.slot for one in inputs) + 1, inputs)
            starts = [one.slot * self.rows_per_slot for one in inputs]
            logits = [
                every[start : start + self.rows[one.slot]] for start, one in zip(starts, inputs, strict=True)
            ]
        else:
            logits = [self._step(one.slot, 1, [one]) for one in inputs]
        for one in inputs:
            self.lengths[one.slot] += 1
        return logits

    def verify(self, inputs: Sequence[VerifyInput]) -> list[Logits]:
        """Return the logits (rows, tokens, vocab) after each token of each utterance.

        Rows run one after the other: with a KV cache before them, the attention operator takes several tokens
        of one row only.
        """
        for one in inputs:
            self._check_capacity(self.lengths[one.slot] + len(one.tokens))
        logits = [
            np.concatenate([self._verify_row(one, row) for row in range(self.rows[one.slot])])
            for one in inputs
        ]
        for one in inputs:
            self.lengths[one.slot] += len(one.tokens)
        return logits

    def rewind(self, slot: int, count: int) -> None:
        self.lengths[slot] -= count

    def capture_hidden_states(self) -> None:
        raise NotImplementedError("the draft head runs over backends/onnx/runner.py")

    def hidden_states(self, slot: int, draw: int) -> Floats:
        raise NotImplementedError("the draft head runs over backends/onnx/runner.py")

    def move(self, source: int, target: int) -> None:
        rows, length = self.rows[source], self.lengths[source]
        old, new = source * self.rows_per_slot, target * self.rows_per_slot
        for part in self.pool.values():
            part[new : new + rows, :, :length] = part[old : old + rows, :, :length]
        self.rows[target], self.lengths[target] = rows, length
        self.rows[source], self.lengths[source] = 0, 0

    def release(self, slot: int) -> None:
        """Do nothing: the next prompt overwrites the slot."""

    def reset(self, slot: int) -> None:
        first = slot * self.rows_per_slot
        for part in self.pool.values():
            part[first : first + self.rows_per_slot] = 0

    def _step(self, slot: int, slots: int, inputs: Sequence[StepInput]) -> Logits:
        """Step `slots` slots from `slot` on, (rows, vocab); those without an input compute what is not read."""
        each = self.rows_per_slot if slots > 1 else self.rows[slot]
        bound = self._bind(slot * self.rows_per_slot, slots * each, 1)
        own = {one.slot: one.token for one in inputs}
        numbers = range(slot, slot + slots)
        bound.x[:, 0] = self.embeddings.speech(
            [own.get(number, 0) for number in numbers for _ in range(each)]
        )
        return bound.run([self.lengths[number] for number in numbers for _ in range(each)])[:, 0]

    def _verify_row(self, one: VerifyInput, row: int) -> Logits:
        known, count = self.lengths[one.slot], len(one.tokens)
        bound = self._bind(one.slot * self.rows_per_slot + row, 1, count)
        bound.x[0] = self.embeddings.speech(one.tokens)
        return bound.run([known + count - 1])

    def _bind(self, row: int, rows: int, tokens: int) -> _Bound:
        """Return the buffers of a group of rows, which are bound once."""
        if (row, rows, tokens) not in self._bound:
            x = np.zeros((rows, tokens, self.config.backbone.width), np.float32)
            self._bound[row, rows, tokens] = _Bound(self, row, x, logit_positions=range(tokens))
        return self._bound[row, rows, tokens]

    def _check_capacity(self, positions: int) -> None:
        if positions > self.capacity:
            raise MemoryFull(
                "the utterance is longer than its KV cache",
                got=f"{positions} positions",
                allowed=f"at most {self.capacity}",
                fix="Use a shorter sentence, or open the session with a larger capacity.",
            )


class _Bound:
    """The buffers of a run over some rows of the pool, bound to the graph's inputs and outputs."""

    def __init__(self, runner: LlamaRunner, row: int, x: Floats, *, logit_positions: Sequence[int]) -> None:
        rows, vocab = len(x), runner.config.speech_vocab
        self.x, self._session = x, runner.session
        self._last, self._total = np.zeros(rows, np.int32), np.zeros(1, np.int32)
        self._logits: Floats = np.zeros((rows, len(logit_positions), vocab), np.float32)
        self._binding = runner.session.io_binding()
        self._inputs: dict[str, NDArray[Any]] = {
            "x": x,
            "seqlens_k": self._last,
            "total_sequence_length": self._total,
            "logit_positions": np.array(logit_positions, np.int64),
            **runner.rope,
        }
        pool = {name: part[row : row + rows] for name, part in runner.pool.items()}
        for name, value in (self._inputs | pool).items():
            _bind(self._binding.bind_input, name, value)
        _bind(self._binding.bind_output, "logits", self._logits)
        for name, part in pool.items():
            _bind(self._binding.bind_output, NEW + name, part)

    def run(self, last: list[int]) -> Logits:
        """Return the logits (rows, positions, vocab) of `x`; `last` are the last positions of the rows."""
        self._last[:], self._total[:] = last, max(last) + 1
        self._session.run_with_iobinding(self._binding)
        return self._logits.copy()


def _bind(how: Any, name: str, value: NDArray[Any]) -> None:
    """Bind an array by `bind_input` or `bind_output` of an I/O binding."""
    how(name, "cpu", 0, value.dtype.type, value.shape, value.ctypes.data)


def _rows(table: Floats | RowQuantized, ids: Sequence[int]) -> Floats:
    index = np.array(ids, np.int64)
    return table.rows(index) if isinstance(table, RowQuantized) else table[index]


def rotary_tables(config: T3Config, positions: int) -> dict[str, Floats]:
    """Return cosines and sines of all positions, (positions, head_dim / 2); both halves of a head share them."""
    assert isinstance(config.backbone, LlamaConfig)
    width = config.backbone.width // config.backbone.heads
    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    inverse = np.float32(1.0) / np.float32(config.backbone.rope_theta) ** exponent
    angle = np.arange(positions, dtype=np.float32)[:, None] * inverse
    return {"cos": np.cos(angle), "sin": np.sin(angle)}
