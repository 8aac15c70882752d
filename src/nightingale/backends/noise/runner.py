"""Logits as a hash of the prompt and of all tokens so far: as sensitive to state as a network, and cheap."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache

import numpy as np

from nightingale.backends.base import ModelInfo
from nightingale.decoding.attention_trace import SlotTraces
from nightingale.decoding.decoding import Prompt
from nightingale.decoding.runner import StepInput
from nightingale.decoding.sampling import Logits
from nightingale.errors import MemoryFull

TABLE_ROWS = 256
KEY_SCALE = 20.0
"""Large enough for attention to a single column of the text."""


@cache
def logits_table(vocab: int) -> Logits:
    rng = np.random.Generator(np.random.PCG64(0))
    return rng.normal(scale=3.0, size=(TABLE_ROWS, vocab)).astype(np.float32)


class NoiseRunner:
    """Implements `LogitsRunner` over one 32-bit state per position instead of keys and values."""

    def __init__(self, info: ModelInfo) -> None:
        self._table = logits_table(info.preset.t3.speech_vocab)
        self._max_text_ids, self._capacity = info.defaults.max_text_ids, info.defaults.max_new_tokens + 1
        self._states: dict[int, list[int]] = {}
        self._rows: dict[int, int] = {}
        self.traces = SlotTraces()
        self._columns_per_row: dict[int, float] = {}

    @property
    def kv_bytes(self) -> int:
        return sum(4 * len(states) for states in self._states.values())

    def prefill(self, slot: int, prompt: Prompt, *, max_tokens: int) -> Logits:
        if len(prompt.text_ids) > self._max_text_ids:
            raise MemoryFull("the text is longer than its KV cache", allowed=f"{self._max_text_ids} text ids")
        voice = prompt.voice
        text = np.array(prompt.text_ids, np.int64).tobytes()
        state = zlib.crc32(text + voice.speaker.tobytes() + np.float32(prompt.exaggeration).tobytes())
        self._states[slot], self._rows[slot] = [state], prompt.rows
        self.traces.begin(slot, prompt.trace)
        if prompt.trace is not None:
            columns = len(prompt.text_ids) + 2  # with the start and the stop
            self._columns_per_row[slot] = columns / max_tokens
            prompt.trace.set_keys([KEY_SCALE * np.eye(columns, dtype=np.float32)])
            self._trace(slot, 0)
        return self._logits(slot)

    def step(self, inputs: Sequence[StepInput]) -> list[Logits]:
        for one in inputs:
            # As keys and values that are written again: a step that failed may be repeated.
            del self._states[one.slot][one.position :]
            if len(self._states[one.slot]) + 1 > self._capacity:
                raise MemoryFull(
                    "the utterance is longer than its KV cache", allowed=f"{self._capacity} positions"
                )
        return [self._append(one.slot, one.token) for one in inputs]

    def move(self, source: int, target: int) -> None:
        self._states[target], self._rows[target] = self._states.pop(source), self._rows.pop(source)
        self.traces.move(source, target)
        if source in self._columns_per_row:
            self._columns_per_row[target] = self._columns_per_row.pop(source)

    def release(self, slot: int) -> None:
        self._states.pop(slot, None)
        self.traces.pop(slot, None)
        self._columns_per_row.pop(slot, None)

    def reset(self, slot: int) -> None:
        self.release(slot)

    def _append(self, slot: int, token: int) -> Logits:
        states = self._states[slot]
        states.append(zlib.crc32(token.to_bytes(4, "little"), states[-1]))
        if slot in self.traces:
            self._trace(slot, len(states) - 1)
        return self._logits(slot)

    def _trace(self, slot: int, row: int) -> None:
        """Attend to the text at a constant speed."""
        columns = self.traces[slot].text_positions(0)
        query = np.zeros((1, columns.stop - columns.start), np.float32)
        query[0, min(int(row * self._columns_per_row[slot]), query.size - 1)] = KEY_SCALE
        self.traces[slot].set_queries(row, [query])

    def _logits(self, slot: int) -> Logits:
        state = self._states[slot][-1]
        return self._table[[state % TABLE_ROWS, (state >> 8) % TABLE_ROWS][: self._rows[slot]]]
