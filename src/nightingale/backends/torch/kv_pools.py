"""Pools of KV caches for the slots of a runner: dense ones, or blocks that are allocated as they are needed.

A dense slot has room for the longest utterance, in the precision of the weights. A paged slot
(models/layers/kv_blocks.py) has room for its own utterance, in fewer bytes, and may keep only some positions.
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
    """The KV cache of one layer of one utterance."""

    position: int

    @property
    def rows(self) -> int: ...

    def rewind(self, position: int) -> None:
        """Drop everything from `position` on."""


class KVPool(Protocol):
    """The KV caches of all slots. `caches` below are those of one slot, one per layer."""

    @property
    def bytes(self) -> int:
        """The size of the pool, however many slots are in use."""

    def open(self, slot: int, *, rows: int, prompt: int, tokens: int | None) -> list[SlotKVCache]:
        """Return empty caches for at most this many tokens; None makes room for the longest utterance."""

    def batch(
        self, slots: Sequence[Sequence[SlotKVCache]], *, used: int, counts: Sequence[int]
    ) -> Sequence[KVCache]:
        """Return the cache of each layer for one batched step.

        Args:
            slots: The caches of the first slots.
            used: The rows of each slot that take part.
            counts: The tokens that each slot is given; 0 if it takes no part.
        """

    def advance(self, caches: Sequence[SlotKVCache], count: int) -> None:
        """Count the tokens that a batched step stored for one slot."""

    def move(self, caches: Sequence[SlotKVCache], slot: int) -> list[SlotKVCache]:
        """Move caches to another slot, which is free."""

    def close(self, caches: Sequence[SlotKVCache]) -> None:
        """Free the caches of an utterance that has ended."""

    def wipe(self, caches: Sequence[SlotKVCache]) -> None:
        """Overwrite the contents after a fault, so that no NaN reaches the slot's next utterance."""


class SlotKVPool:
    """Dense caches of equal size, allocated once: the reference."""

    def __init__(self, layers: list[DenseKVCache], *, slots: int) -> None:
        self.layers, self.rows_per_slot = layers, len(layers[0].keys) // slots

    @classmethod
    def of(cls, t3: T3, *, slots: int, rows_per_slot: int, capacity: int) -> SlotKVPool:
        return cls(t3.new_kv_cache(rows=slots * rows_per_slot, capacity=capacity), slots=slots)

    @property
    def bytes(self) -> int:
        return sum(2 * layer.keys.numel() * layer.keys.element_size() for layer in self.layers)

    def open(self, slot: int, *, rows: int, prompt: int, tokens: int | None) -> list[SlotKVCache]:  # noqa: ARG002
        first = slot * self.rows_per_slot
        return [layer.slice_rows(first, rows) for layer in self.layers]

    def batch(
        self, slots: Sequence[Sequence[SlotKVCache]], *, used: int, counts: Sequence[int]
    ) -> Sequence[KVCache]:
        lengths = [caches[0].position if caches else 0 for caches in slots for _ in range(used)]
        # A slot that takes no part stores one token behind its contents, where it is never read.
        each = [max(1, count) for count in counts for _ in range(used)]
        every = self.rows_per_slot // used
        return BatchedKVCache.for_layers(self.layers, lengths, each, every=every)

    def advance(self, caches: Sequence[SlotKVCache], count: int) -> None:
        for layer in caches:
            layer.position += count

    def move(self, caches: Sequence[SlotKVCache], slot: int) -> list[SlotKVCache]:
        new = self.open(slot, rows=caches[0].rows, prompt=0, tokens=None)
        for before, after in zip(caches, new, strict=True):
            assert isinstance(before, DenseKVCache)
            assert isinstance(after, DenseKVCache)
            length = after.position = before.position
            after.keys[:, :, :length] = before.keys[:, :, :length]
            after.values[:, :, :length] = before.values[:, :, :length]
        return new

    def close(self, caches: Sequence[SlotKVCache]) -> None:
        """Do nothing: the slot's next utterance overwrites them."""

    def wipe(self, caches: Sequence[SlotKVCache]) -> None:
        for layer in caches:
            assert isinstance(layer, DenseKVCache)
            layer.wipe()


class PagedKVPool:
    """Caches of block-allocated sequences, each as large as its utterance can need. Moving one copies nothing."""

    def __init__(
        self,
        layout: KVBlockLayout,
        *,
        slots: int,
        rows_per_slot: int,
        prompt: int,
        tokens: int,
        device: torch.device,
        most_bytes: int = 0,
        attend: BlockAttention | None = None,
    ) -> None:
        """Allocate the blocks.

        Args:
            prompt: The positions of the longest prompt.
            tokens: The tokens of the longest utterance.
            most_bytes: The limit of all sequences together; 0 lets every slot hold the longest utterance.
            attend: The attention kernel of a GPU.
        """
        blocks = slots * rows_per_slot * layout.blocks(prompt, tokens)
        if most_bytes:
            blocks = min(blocks, most_bytes // layout.block_bytes)
        self.block_pool = KVBlockPool(blocks=blocks, layout=layout, device=device, attend=attend)
        self._capacity = prompt + tokens
        self._sequences: dict[int, PagedKVSequence] = {}
        self._tables: tuple[object, list[dict[str, Tensor]]] | None = None

    @property
    def bytes(self) -> int:
        return self.block_pool.bytes

    def open(self, slot: int, *, rows: int, prompt: int, tokens: int | None) -> list[SlotKVCache]:
        self._free(slot)
        most = self._capacity - prompt if tokens is None else tokens
        sequence = self._sequences[slot] = PagedKVSequence(
            self.block_pool, rows=rows, prompt=prompt, tokens=max(1, most)
        )
        return list(sequence.layers)

    def batch(
        self, slots: Sequence[Sequence[SlotKVCache]], *, used: int, counts: Sequence[int]
    ) -> Sequence[KVCache]:
        depth = max(map(len, slots))
        layers: list[list[PagedKVCache | None]] = [[] for _ in range(depth)]
        for caches, count in zip(slots, counts, strict=True):
            for at, layer in enumerate(layers):
                cache = caches[at] if caches and count else None
                assert cache is None or isinstance(cache, PagedKVCache)
                if cache is not None:
                    cache.check_capacity(count)
                layer.append(cache)
        step = [PagedKVBatch(layer, used=used, counts=[max(1, n) for n in counts]) for layer in layers]
        if self.block_pool.attend is not None and max(counts) == 1:
            lengths = [0 if cache is None else cache.position for cache in layers[0] for _ in range(used)]
            on_device = torch.tensor(lengths, dtype=torch.int32, device=self.block_pool.device)
            for rows, tables in zip(step, self._block_tables(layers[0], used), strict=False):
                rows.tables = KVBlockTables(block_pool=self.block_pool, lengths=on_device, **tables)
        return step

    def _block_tables(self, caches: Sequence[PagedKVCache | None], used: int) -> list[dict[str, Tensor]]:
        """Return the kernel's tables of each layer, rebuilt only when a sequence was opened, closed or moved."""
        key = (
            self.block_pool.generation,
            used,
            tuple(None if cache is None else id(cache.sequence) for cache in caches),
        )
        if self._tables is not None and self._tables[0] == key:
            return self._tables[1]
        layout = self.block_pool.layout
        starts = np.full((layout.layers, len(caches) * used, layout.heads), -1, np.int64)
        rings, prompts = np.ones_like(starts), np.zeros(len(caches) * used, np.int64)
        for slot, cache in enumerate(caches):
            if cache is not None:
                sequence = cache.sequence
                rows = slice(slot * used, slot * used + sequence.rows)
                starts[:, rows], rings[:, rows] = sequence.starts(), np.array(sequence.rings)[:, None]
                prompts[rows] = sequence.prompt
        all_starts, all_rings, all_prompts = (
            torch.from_numpy(table).to(self.block_pool.device, dtype)
            for table, dtype in ((starts, torch.int64), (rings, torch.int32), (prompts, torch.int32))
        )
        tables = [
            {"starts": all_starts[layer], "rings": all_rings[layer], "prompts": all_prompts}
            for layer in range(layout.layers)
        ]
        self._tables = (key, tables)
        return tables

    def advance(self, caches: Sequence[SlotKVCache], count: int) -> None:
        """Do nothing: each cache counts for itself."""

    def move(self, caches: Sequence[SlotKVCache], slot: int) -> list[SlotKVCache]:
        source = self._slot_of(caches)
        assert source is not None
        self._free(slot)
        self._sequences[slot] = self._sequences.pop(source)
        self.block_pool.generation += 1
        return list(caches)

    def close(self, caches: Sequence[SlotKVCache]) -> None:
        slot = self._slot_of(caches)
        if slot is not None:
            self._free(slot)

    def wipe(self, caches: Sequence[SlotKVCache]) -> None:
        slot = self._slot_of(caches)
        if slot is not None:
            self._sequences[slot].wipe()

    def _slot_of(self, caches: Sequence[SlotKVCache]) -> int | None:
        """Return the slot that holds these caches; None if they were freed."""
        owners = (slot for slot, sequence in self._sequences.items() if sequence.layers[0] is caches[0])
        return next(owners, None) if caches else None

    def _free(self, slot: int) -> None:
        sequence = self._sequences.pop(slot, None)
        if sequence is not None:
            sequence.close()
