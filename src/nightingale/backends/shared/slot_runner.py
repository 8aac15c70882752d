"""Slots, KV caches and prompts of the CPU runners.

A slot is the KV cache of one utterance, two rows where it may be guided. Prompts share prefixes: the voice's part
precedes the text in every prompt and in both rows of a guided one, and unguided rows differ only in length. So the
rows of the latest prompts are kept (`PrefixCache`), and a prefill reads only what follows the longest common prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightingale.backends.shared.prefix_cache import Floats, PrefixCache
from nightingale.decoding.attention_trace import SlotTraces
from nightingale.decoding.sampling import Logits
from nightingale.models.layers.capacity import check_capacity


class SlotRunner:
    """Base of the CPU runners."""

    def __init__(
        self,
        pool: Mapping[str, NDArray[Any]],
        *,
        slots: int,
        rows_per_slot: int,
        capacity: int,
        batched: bool,
        has_prefix_cache: bool = True,
    ) -> None:
        """pool: the KV caches, arrays whose first axis is the row."""
        self.pool, self.rows_per_slot, self.capacity, self.batched = pool, rows_per_slot, capacity, batched
        self._prefix_cache = PrefixCache(rows_per_slot if has_prefix_cache else 0)
        self.traces = SlotTraces()
        self.rows: list[int] = [0] * slots
        """rows[slot]: the rows that its utterance uses."""
        self.lengths: list[int] = [0] * slots
        """lengths[slot]: the positions that its KV cache holds."""

    @property
    def kv_bytes(self) -> int:
        return sum(part.nbytes for part in self.pool.values())

    def read_prompt(self, slot: int, prompt: Floats, absolute: Floats | None) -> list[Logits]:
        """Read embeddings (rows, time, width) into a slot, after adding GPT-2's position embeddings.

        Return the logits of each row.
        """
        x = np.asarray(prompt, np.float32)
        rows, length = x.shape[:2]
        check_capacity(length, self.capacity)
        if absolute is not None:
            x = x + absolute[:length]
        read = []
        for row, own in enumerate(x, slot * self.rows_per_slot):
            known = self._prefix_cache.restore(own, partial(self._views, row))
            read.append(self._read(row, own[known:], known))
            self._prefix_cache.store(own, self._views(row, length))
        self.rows[slot], self.lengths[slot] = rows, length
        return read

    def move(self, source: int, target: int) -> None:
        """Copy an utterance's keys and values to another slot."""
        length = self.lengths[source]
        for row in range(self.rows[source]):
            views = self._views(source * self.rows_per_slot + row, length)
            for name, view in self._views(target * self.rows_per_slot + row, length).items():
                view[:] = views[name]
        self.rows[target], self.lengths[target] = self.rows[source], length
        self.rows[source], self.lengths[source] = 0, 0
        self.traces.move(source, target)

    def release(self, slot: int) -> None:
        """Forget the trace; the next prompt overwrites the slot."""
        self.traces.pop(slot, None)

    def reset(self, slot: int) -> None:
        """Clear the slot and all cached prompts, so that nothing from before an error is used again."""
        first = slot * self.rows_per_slot
        for part in self.pool.values():
            part[first : first + self.rows_per_slot] = 0
        self._prefix_cache.entries.clear()

    def _read(self, row: int, x: Floats, known: int) -> Logits:
        """Append x (time, width) to a row of `known` positions; return the logits after its last position."""
        raise NotImplementedError

    def _views(self, row: int, positions: int) -> dict[str, NDArray[Any]]:
        """Return the first positions of a row of each array of the pool."""
        raise NotImplementedError
