"""Pools of KV caches: dense slots, or blocks that are allocated as they are needed.

*Slots*: each utterance has room for the longest one there is, in the precision of the weights. *Blocks*
(models/layers/kv_blocks.py): each has room for itself, in fewer bytes, and may keep only some positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.layers.kv_blocks import BlockAttention, KVBlockLayout, KVBlockPool
from nightingale.models.layers.kv_cache import BatchedKVCache, DenseKVCache, KVCache
from nightingale.models.layers.paged_kv_cache import (
    KVBlockTables,
    PagedKVBatch,
    PagedKVCache,
    PagedKVSequence,
)


class SlotKVCache(KVCache, Protocol):
    """One layer of one utterance."""

    position: int

    @property
    def rows(self) -> int: ...

    def rewind(self, position: int) -> None:
        """Drop everything from `position` on."""


class KVPool(Protocol):
    @property
    def bytes(self) -> int:
        """What it takes, however many are speaking."""

    @property
    def used_bytes(self) -> int:
        """What cannot be given to others now."""

    def open(self, slot: int, *, rows: int, prompt: int, tokens: int | None) -> list[SlotKVCache]:
        """Empty memory of each layer, for so many tokens at most; None: for the longest utterance."""

    def batch(
        self, own: Sequence[Sequence[SlotKVCache]], *, used: int, counts: Sequence[int]
    ) -> Sequence[KVCache]:
        """The memory of each layer for a step of the first slots, `used` rows of each. own: of each slot;
        counts: the tokens each is given, 0 if it takes no part."""

    def advance(self, own: Sequence[SlotKVCache], count: int) -> None:
        """A step of all together was taken; so many tokens of it belong to this one."""

    def move(self, own: Sequence[SlotKVCache], slot: int) -> list[SlotKVCache]:
        """Bring it to another slot, which is free."""

    def close(self, own: Sequence[SlotKVCache]) -> None:
        """Whoever had it is done."""

    def wipe(self, own: Sequence[SlotKVCache]) -> None:
        """After a fault: what is not a number must not reach whoever comes next."""

    def first(self, layers: int) -> KVPool:
        """The same memory without the later layers."""


class SlotKVPool:
    """The reference."""

    def __init__(self, layers: list[DenseKVCache], *, slots: int) -> None:
        self.layers, self.rows_per_slot = layers, len(layers[0].keys) // slots
        self.slots = slots

    @classmethod
    def of(cls, t3: T3, *, slots: int, rows_per_slot: int, capacity: int) -> SlotKVPool:
        return cls(t3.new_kv_cache(rows=slots * rows_per_slot, capacity=capacity), slots=slots)

    @property
    def bytes(self) -> int:
        return sum(2 * m.keys.numel() * m.keys.element_size() for m in self.layers)

    @property
    def used_bytes(self) -> int:
        return self.bytes

    def open(self, slot: int, *, rows: int, prompt: int, tokens: int | None) -> list[SlotKVCache]:  # noqa: ARG002
        first = slot * self.rows_per_slot
        return [layer.slice_rows(first, rows) for layer in self.layers]

    def batch(
        self, own: Sequence[Sequence[SlotKVCache]], *, used: int, counts: Sequence[int]
    ) -> Sequence[KVCache]:
        lengths = [memory[0].position if memory else 0 for memory in own for _ in range(used)]
        # Who takes no part is given something too, just behind what it remembers, which nobody reads.
        each = [max(1, count) for count in counts for _ in range(used)]
        every = self.rows_per_slot // used
        return BatchedKVCache.for_layers(self.layers, lengths, each, every=every)

    def advance(self, own: Sequence[SlotKVCache], count: int) -> None:
        for layer in own:
            layer.position += count

    def move(self, own: Sequence[SlotKVCache], slot: int) -> list[SlotKVCache]:
        new = self.open(slot, rows=own[0].rows, prompt=0, tokens=None)
        for before, after in zip(own, new, strict=True):
            assert isinstance(before, DenseKVCache)
            assert isinstance(after, DenseKVCache)
            length = after.position = before.position
            after.keys[:, :, :length] = before.keys[:, :, :length]
            after.values[:, :, :length] = before.values[:, :, :length]
        return new

    def close(self, own: Sequence[SlotKVCache]) -> None:
        """It is written over by whoever comes next."""

    def wipe(self, own: Sequence[SlotKVCache]) -> None:
        for layer in own:
            assert isinstance(layer, DenseKVCache)
            layer.wipe()

    def first(self, layers: int) -> SlotKVPool:
        return SlotKVPool(self.layers[:layers], slots=self.slots)


class PagedKVPool:
    """Every utterance has a stream of cells, as many as it can need. Moving one moves nothing."""

    def __init__(
        self,
        plan: KVBlockLayout,
        *,
        slots: int,
        rows_per_slot: int,
        prompt: int,
        tokens: int,
        device: torch.device,
        most_bytes: int = 0,
        attend: BlockAttention | None = None,
    ) -> None:
        """prompt, tokens: of the longest utterance. most_bytes: of all streams; 0: all slots may be of the
        longest kind. attend: the kernel, where there is a GPU for it."""
        cells = slots * rows_per_slot * plan.blocks(prompt, tokens)
        if most_bytes:
            cells = min(cells, most_bytes // plan.block_bytes)
        self.block_pool = KVBlockPool(blocks=cells, layout=plan, device=device, attend=attend)
        self._capacity = prompt + tokens
        self._open: dict[int, PagedKVSequence] = {}
        self._layers = plan.layers
        self._tables: tuple[object, list[dict[str, Tensor]]] | None = None

    @property
    def bytes(self) -> int:
        return self.block_pool.bytes

    @property
    def used_bytes(self) -> int:
        return self.block_pool.used_bytes

    def open(self, slot: int, *, rows: int, prompt: int, tokens: int | None) -> list[SlotKVCache]:
        self._forget(slot)
        most = self._capacity - prompt if tokens is None else tokens
        stream = self._open[slot] = PagedKVSequence(
            self.block_pool, rows=rows, prompt=prompt, tokens=max(1, most)
        )
        return list(stream.layers)

    def batch(
        self, own: Sequence[Sequence[SlotKVCache]], *, used: int, counts: Sequence[int]
    ) -> Sequence[KVCache]:
        depth = max(len(memory) for memory in own)
        layers: list[list[PagedKVCache | None]] = [[] for _ in range(depth)]
        for memory, count in zip(own, counts, strict=True):
            for at, layer in enumerate(layers):
                mine = memory[at] if memory and count else None
                assert mine is None or isinstance(mine, PagedKVCache)
                if mine is not None:
                    mine.check_capacity(count)
                layer.append(mine)
        step = [PagedKVBatch(layer, used=used, counts=[max(1, n) for n in counts]) for layer in layers]
        if self.block_pool.attend is not None and max(counts) == 1:
            lengths = [0 if memory is None else memory.position for memory in layers[0] for _ in range(used)]
            told = torch.tensor(lengths, dtype=torch.int32, device=self.block_pool.device)
            for rows, tables in zip(step, self._tables_of(layers[0], used), strict=False):
                rows.tables = KVBlockTables(block_pool=self.block_pool, lengths=told, **tables)
        return step

    def _tables_of(self, own: Sequence[PagedKVCache | None], used: int) -> list[dict[str, Tensor]]:
        """Of each layer; made anew only when somebody came, left or moved."""
        key = (
            self.block_pool.generation,
            used,
            tuple(None if memory is None else id(memory.sequence) for memory in own),
        )
        if self._tables is not None and self._tables[0] == key:
            return self._tables[1]
        plan = self.block_pool.layout
        starts = np.full((self._layers, len(own) * used, plan.heads), -1, np.int64)
        rings, prompts = np.ones_like(starts), np.zeros(len(own) * used, np.int64)
        for slot, memory in enumerate(own):
            if memory is not None:
                stream = memory.sequence
                rows = slice(slot * used, slot * used + stream.rows)
                starts[:, rows], rings[:, rows] = stream.starts(), np.array(stream.rings)[:, None]
                prompts[rows] = stream.prompt
        whole, lengths, first = (
            torch.from_numpy(table).to(self.block_pool.device, dtype)
            for table, dtype in ((starts, torch.int64), (rings, torch.int32), (prompts, torch.int32))
        )
        made = [
            {"starts": whole[layer], "rings": lengths[layer], "prompts": first}
            for layer in range(self._layers)
        ]
        self._tables = (key, made)
        return made

    def advance(self, own: Sequence[SlotKVCache], count: int) -> None:
        """Each has counted for itself."""

    def move(self, own: Sequence[SlotKVCache], slot: int) -> list[SlotKVCache]:
        source = next(at for at, stream in self._open.items() if stream.layers[0] is own[0])
        self._forget(slot)
        self._open[slot] = self._open.pop(source)
        self.block_pool.generation += 1
        return list(own)

    def close(self, own: Sequence[SlotKVCache]) -> None:
        for slot, stream in list(self._open.items()):
            if own and stream.layers[0] is own[0]:
                self._forget(slot)

    def _forget(self, slot: int) -> None:
        stream = self._open.pop(slot, None)
        if stream is not None:
            stream.close()

    def wipe(self, own: Sequence[SlotKVCache]) -> None:
        for stream in self._open.values():
            if own and stream.layers[0] is own[0]:
                stream.wipe()

    def first(self, layers: int) -> PagedKVPool:  # noqa: ARG002
        """The layers that are asked for are those whose memory is given: see `batch`."""
        return self
