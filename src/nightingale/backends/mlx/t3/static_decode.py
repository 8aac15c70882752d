"""T3's decode loop on MLX: several utterances at once, without waiting for the host.

    logits -> penalty, cuts -> token -> embedding -> layers -> head -> guidance -> logits

A step is one function, compiled for each number of slots and span of positions. The host only builds graphs: MLX
runs step n while the host builds step n + 1 (`mx.async_eval`), and the tokens of a block of steps are read in one
copy, while the next block runs. Reference: `HostDecoder` in decoding/host_decoder.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import mlx.core as mx

from nightingale.backends.mlx.arrays import compiled, read
from nightingale.backends.mlx.t3.slot_sampling import (
    NO_TOKEN,
    SamplerOrder,
    SamplingRows,
    SlotState,
    guide,
    needs_sorting,
    sample,
    sampling_noise,
)
from nightingale.backends.mlx.t3.t3_network import MlxT3
from nightingale.backends.mlx.t3.transformer import KVCaches
from nightingale.decoding.decoding import Decoding
from nightingale.errors import MemoryFull

SPANS: Final = (256, 512, 1024, 2048, 4096, 8192)
"""Sizes of KV caches, and how much of one a step attends to: the fewer there are, the fewer functions."""
PROMPT_STRIDE: Final = 32
"""Prompts are padded to a multiple of this, so that few functions serve all lengths."""


class TokenBlock(NamedTuple):
    """Tokens (steps, slots) that are being computed."""

    tokens: mx.array

    def take(self) -> list[list[int]]:
        """Wait for the tokens of each slot; INVALID_LOGITS stands for one that failed."""
        return [[token for token in row if token != NO_TOKEN] for row in read(self.tokens).T.tolist()]


class CachedUtterance(NamedTuple):
    """The host's knowledge of a slot."""

    positions: int
    """The most positions that are cached once all launched steps have run."""
    sorts: bool
    """True if its sampling sorts the logits."""


Step = Callable[
    [SamplingRows, SlotState, mx.array, list[KVCaches]], tuple[mx.array, SlotState, list[KVCaches]]
]


class StaticDecodeLoop:
    """Decode with KV caches of fixed size. Its arrays belong to the thread that calls it.

    capacity: the most positions of an utterance, its prompt included.
    """

    def __init__(self, t3: MlxT3, *, order: SamplerOrder, capacity: int) -> None:
        self.t3, self._order, self.capacity = t3, order, capacity
        # Row n of the state belongs to slot n. A slot that was released keeps its row until it is used again or
        # is the last one.
        self._caches: list[KVCaches] = []
        self._state: SlotState | None = None
        self._rows: SamplingRows | None = None
        self._used: dict[int, CachedUtterance] = {}
        self._steps: dict[tuple[int, bool], Step] = {}
        self._read, self._noise = compiled(t3.read), compiled(self._next_noise)

    def prefill(self, slot: int, prompt: mx.array, decoding: Decoding) -> None:
        """Fill a slot with a prompt (rows, time, width); the next step samples its first token."""
        rows, length, _ = prompt.shape
        table, budget = self.t3.config.learned_positions, decoding.budget
        limit = self.capacity if table is None else min(self.capacity, length + table[1] - 1)
        if length + budget > limit:
            raise MemoryFull(
                "the utterance does not fit its KV cache",
                got=f"a prompt of {length} positions and {budget} tokens",
                allowed=f"{limit} together",
                fix="Speak a shorter sentence, or plan a larger capacity.",
            )
        padding = -length % PROMPT_STRIDE
        caches = self.t3.backbone.new_caches(rows, _span_of(length + max(budget, padding)))
        x = mx.pad(prompt, [(0, 0), (0, padding), (0, 0)])
        logits, caches = self._read(x, mx.array(length - 1), caches)
        own = SamplingRows.of(decoding, self.t3.config.speech_vocab)
        state = SlotState.after_prompt(guide(logits, [rows], own.cfg_weight), length)
        mx.async_eval(state)
        self._put(slot, own, state, caches)
        self._used[slot] = CachedUtterance(length, needs_sorting(decoding.sampling))

    def launch(self, steps: int) -> TokenBlock:
        """Start decode steps for every slot in use, and return their tokens to come."""
        self._trim()
        assert self._state is not None
        assert self._rows is not None
        longest = max(used.positions for used in self._used.values()) + steps
        step = self._step_function(_span_of(longest), any(used.sorts for used in self._used.values()))
        noise = self._noise(self._rows, self._state.sampled, steps)
        told: list[mx.array] = []
        for number in range(steps):
            tokens, state, self._caches = step(self._rows, self._state, noise[number], self._caches)
            self._state = SlotState(*state)
            told.append(tokens)
            block = mx.stack(told)
            mx.async_eval(block if number == steps - 1 else tokens, self._state)
        self._used = {
            slot: used._replace(positions=used.positions + steps) for slot, used in self._used.items()
        }
        return TokenBlock(block)

    def release(self, slot: int) -> None:
        self._used.pop(slot, None)
        if not self._used:
            self.clear()

    def clear(self) -> None:
        """Drop all utterances, and give unused memory back."""
        self._caches, self._state, self._rows, self._used = [], None, None, {}
        mx.clear_cache()

    def move(self, source: int, target: int) -> None:
        """Move an utterance to a free slot, so that slots in use have no gaps. Nothing is copied."""
        if source not in self._used:  # its state was dropped
            return
        assert self._state is not None
        assert self._rows is not None
        rows = SamplingRows(*(part[source : source + 1] for part in self._rows))
        state = SlotState(*(part[source : source + 1] for part in self._state))
        self._put(target, rows, state, self._caches[source])
        self._used[target] = self._used.pop(source)

    def _put(self, slot: int, rows: SamplingRows, state: SlotState, caches: KVCaches) -> None:
        self._rows = rows if self._rows is None else SamplingRows(*_with_row(self._rows, slot, rows))
        self._state = state if self._state is None else SlotState(*_with_row(self._state, slot, state))
        self._caches = [*self._caches[:slot], caches, *self._caches[slot + 1 :]]

    def _trim(self) -> None:
        """Drop the rows after the last slot in use."""
        count = max(self._used) + 1
        if self._state is not None and self._rows is not None and count < len(self._caches):
            self._rows = SamplingRows(*(part[:count] for part in self._rows))
            self._state = SlotState(*(part[:count] for part in self._state))
            del self._caches[count:]

    def _next_noise(self, rows: SamplingRows, sampled: mx.array, steps: int) -> mx.array:
        return sampling_noise(SamplingRows(*rows), sampled, steps, self.t3.config.speech_vocab)

    def _step_function(self, span: int, sorting: bool) -> Step:
        if (span, sorting) not in self._steps:

            def step(
                rows: SamplingRows, state: SlotState, noise: mx.array, caches: list[KVCaches]
            ) -> tuple[mx.array, SlotState, list[KVCaches]]:
                # What is compiled gets plain tuples.
                rows, state = SamplingRows(*rows), SlotState(*state)
                tokens, told, state = sample(state, rows, noise, order=self._order, sorting=sorting)
                logits, caches = self.t3.step(tokens, state.sampled, state.lengths, caches, span)
                counts = [len(own[0][0]) for own in caches]
                # A slot that has stopped writes to the same position again, which is never read.
                lengths = state.lengths + state.running
                guided = guide(logits, counts, rows.cfg_weight)
                return told, state._replace(logits=guided, lengths=lengths), caches

            self._steps[span, sorting] = compiled(step)
        return self._steps[span, sorting]


def _span_of(positions: int) -> int:
    return next((span for span in SPANS if positions <= span), positions)


def _with_row(parts: Iterable[mx.array], slot: int, row: Iterable[mx.array]) -> Iterator[mx.array]:
    """Yield each array with row `slot` replaced, or appended."""
    for part, own in zip(parts, row, strict=True):
        yield mx.concatenate([part[:slot], own, part[slot + 1 :]])
