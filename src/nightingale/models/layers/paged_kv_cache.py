"""KV caches over the blocks of a pool (kv_blocks.py explains storage and exactness)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.models.layers.attention import attention
from nightingale.models.layers.capacity import check_capacity
from nightingale.models.layers.kv_blocks import MAX_QUANTIZED, KVBlockPool, dequantize, quantize

TILE: Final = 256
"""Blocks that a CPU dequantizes at a time."""


class PagedKVSequence:
    """The blocks of one sequence, in the order [layer][row][head][prompt, then ring]."""

    def __init__(self, block_pool: KVBlockPool, *, rows: int, prompt: int, tokens: int) -> None:
        self.block_pool, self.rows, self.prompt, self.tokens = block_pool, rows, prompt, tokens
        self.extent = block_pool.allocate(rows * block_pool.layout.blocks(prompt, tokens))
        self.rings = block_pool.layout.ring_sizes(tokens)
        each = np.repeat(np.array(self.rings, np.int64)[:, None] + prompt, rows, axis=1)
        self.offsets = (each.cumsum() - each.ravel()).reshape(each.shape)
        """(layers, rows, heads): each head's first block in the extent."""
        self.layers = [PagedKVCache(self, layer) for layer in range(len(each))]

    def close(self) -> None:
        self.block_pool.release(self.extent)

    def starts(self) -> NDArray[np.int64]:
        """Return the first block of each head: (layers, rows, heads)."""
        return np.asarray(self.extent.start + self.offsets)

    def wipe(self) -> None:
        """Fill the blocks with zeros."""
        own = slice(self.extent.start, self.extent.start + self.extent.count)
        for buffer in self.block_pool.buffers:
            _as_indexable(buffer)[own].zero_()


class PagedKVCache:
    """The `KVCache` of one layer of one sequence."""

    def __init__(self, sequence: PagedKVSequence, layer: int) -> None:
        self.sequence, self.rows, self.position = sequence, sequence.rows, 0
        device, rings = sequence.block_pool.device, sequence.rings[layer]
        self._longest, self._uniform = max(rings), len(set(rings)) == 1
        self._rings = torch.tensor(rings, device=device)[:, None]  # (heads, 1)
        self._first = int(sequence.offsets[layer, 0, 0])
        self._offsets = torch.tensor(sequence.offsets[layer], device=device)[..., None]  # (rows, heads, 1)

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(self.position, self.position + x.shape[1], device=x.device)

    def rewind(self, position: int) -> None:
        """Drop everything from `position` on: all of it, or at most the layout's rewind margin."""
        layout = self.sequence.block_pool.layout
        kept = layout.windows is None or position == 0
        assert kept or self.position - position <= layout.rewind_margin + 1, "its blocks were overwritten"
        self.position = position

    def check_capacity(self, count: int) -> None:
        """Raise `MemoryFull` unless `count` more positions fit."""
        sequence = self.sequence
        margin = sequence.block_pool.layout.rewind_margin
        check_capacity(self.position + count, sequence.prompt + sequence.tokens + margin)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.check_capacity(k.shape[2])
        start, self.position = self.position, self.position + k.shape[2]
        self._store(start, k, v)
        if not start:
            return attention(q, k, v, is_causal=True)
        return self._attend_stored(start, q)

    def _store(self, start: int, k: Tensor, v: Tensor) -> None:
        pool, prompt, end = self.sequence.block_pool, self.sequence.prompt, self.position
        assert end <= prompt or start >= prompt, "a prompt is stored in one pass"
        dtype = pool.layout.dtype
        at = torch.arange(start, end, device=k.device)
        local = at if end <= prompt else prompt + (at - prompt) % self._rings  # (heads, tokens)
        place = self.sequence.extent.start + self._offsets + local
        for x, buffer, scales in ((k, pool.keys, pool.key_scales), (v, pool.values, pool.value_scales)):
            if dtype in MAX_QUANTIZED:
                quantized, scales[place] = quantize(x, dtype, scales.shape[1])
                _as_indexable(buffer)[place] = _as_indexable(quantized)
            else:
                buffer[place] = x

    def _attend_stored(self, start: int, q: Tensor) -> Tensor:
        pool = self.sequence.block_pool
        count = min(self.position, self.sequence.prompt + self._longest)
        mask = self._mask(start, count, q.device)
        keys, values = self._gather(pool.keys, count), self._gather(pool.values, count)
        if pool.layout.dtype not in MAX_QUANTIZED:
            return attention(q, keys, values, mask)
        key_scales, value_scales = (self._gather(b, count) for b in (pool.key_scales, pool.value_scales))
        dtype, q = q.dtype, q.float() * q.shape[-1] ** -0.5
        tiles = [slice(at, min(at + TILE, count)) for at in range(0, count, TILE)]
        scores = torch.cat([q @ dequantize(keys[:, :, at], key_scales[:, :, at]).mT for at in tiles], dim=-1)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = scores.softmax(-1)
        parts = [weights[..., at] @ dequantize(values[:, :, at], value_scales[:, :, at]) for at in tiles]
        return (torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]).to(dtype)

    def _gather(self, buffer: Tensor, count: int) -> Tensor:
        """Return (rows, heads, count, width): a view if all heads keep the same number of blocks.

        Otherwise a copy, in which a head with fewer blocks repeats its last one.
        """
        heads, width, each = len(self._rings), buffer.shape[1], self.sequence.prompt + self._longest
        if self._uniform:
            return buffer.as_strided(
                (self.rows, heads, count, width),
                (heads * each * width, each * width, width, 1),
                (self.sequence.extent.start + self._first) * width,
            )
        local = torch.arange(count, device=buffer.device).clamp(max=self.sequence.prompt + self._rings - 1)
        place = self.sequence.extent.start + self._offsets + local
        return _as_indexable(buffer)[place].view(buffer.dtype)

    def _mask(self, start: int, count: int, device: torch.device) -> Tensor | None:
        """Return the blocks that each new token attends to, (heads, tokens, blocks); None if all."""
        prompt, end = self.sequence.prompt, self.position
        margin = self.sequence.block_pool.layout.window_margin
        if self._uniform and end - start == 1 and end - prompt <= self._longest - margin:
            return None
        block = torch.arange(count, device=device)
        # The latest position written to each block; a stale one comes out as too old.
        held = (end - 1 - (end - 1 - block) % self._rings)[:, None]
        at = torch.arange(start, end, device=device)[:, None]
        recent = (held <= at) & (held > at - (self._rings - margin)[..., None])
        return (block < prompt) | (recent & (block < prompt + self._rings)[:, None])


class PagedKVBatch:
    """Sequences of different lengths that each take a few more tokens: one step of continuous batching.

    A slot has `used` rows in the batch and takes its count of tokens; its cache is None if it takes no part.
    """

    def __init__(self, caches: Sequence[PagedKVCache | None], *, used: int, counts: Sequence[int]) -> None:
        self._caches, self._used, self._counts = caches, used, counts
        self.tables: KVBlockTables | None = None
        """Arguments of the kernel; set where there is one and each slot takes one token."""

    def positions(self, x: Tensor) -> Tensor:
        starts = [0 if cache is None else cache.position for cache in self._caches]
        at = [
            [start + min(ahead, count - 1) for ahead in range(x.shape[1])]
            for start, count in zip(starts, self._counts, strict=True)
            for _ in range(self._used)
        ]
        return torch.tensor(at, device=x.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.tables is not None:
            for cache in self._caches:
                if cache is not None:
                    cache.position += 1
            return self.tables.attend(q, k, v)
        out = torch.zeros_like(q)
        for slot, (cache, count) in enumerate(zip(self._caches, self._counts, strict=True)):
            if cache is not None:
                rows = slice(slot * self._used, slot * self._used + cache.rows)
                out[rows, :, :count] = cache.attend(*(x[rows, :, :count] for x in (q, k, v)))
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class KVBlockTables:
    """The blocks of each row in one layer, as arguments of the kernel."""

    block_pool: KVBlockPool
    starts: Tensor
    """(rows, heads): the first block; negative if the row is unused."""
    rings: Tensor
    """(rows, heads): the ring sizes."""
    prompts: Tensor
    """(rows,): the prompt lengths."""
    lengths: Tensor
    """(rows,): the positions before this token."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Attend with one token of each row, (rows, heads, 1, width); options are the kernel's own."""
        pool = self.block_pool
        assert pool.attend is not None
        tables = {name: getattr(self, name) for name in ("starts", "rings", "prompts", "lengths")}
        return pool.attend(q, k, v, pool, slack=pool.layout.window_margin, **tables, **options)


def _as_indexable(x: Tensor) -> Tensor:
    """View float8 as int8: not every device indexes or fills float8."""
    return x.view(torch.int8) if x.dtype in MAX_QUANTIZED else x
