"""What an attention layer remembers, in the cells of an arena (arena.py says why, and what is exact)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nightingale.models.layers.kv_blocks import TOPS, Extent, KVBlockPool, quantise, restored
from nightingale.models.layers.kv_cache import memory_full

BLOCK: Final = 256
"""Cells that a CPU writes out in full at a time."""


@dataclass(slots=True)
class Stream:
    """One utterance's cells: [layer][row][head][prompt, then ring]."""

    arena: KVBlockPool
    extent: Extent
    rows: int
    prompt: int
    tokens: int
    rings: list[list[int]] = field(init=False)
    layers: list[PagedKVCache] = field(init=False)

    def __post_init__(self) -> None:
        self.rings = self.arena.plan.rings(self.tokens)
        self.layers, start = [], 0
        for rings in self.rings:
            self.layers.append(PagedKVCache(self, start, rings))
            start += self.rows * sum(self.prompt + ring for ring in rings)

    @classmethod
    def open(cls, arena: KVBlockPool, *, rows: int, prompt: int, tokens: int) -> Stream:
        extent = arena.take(rows * arena.plan.cells(prompt, tokens))
        return cls(arena, extent, rows, prompt, tokens)

    def close(self) -> None:
        self.arena.give(self.extent)

    def starts(self) -> NDArray[np.int64]:
        """Where each head's cells begin: (layers, rows, heads)."""
        each = np.array(self.rings, np.int64) + self.prompt
        rows = np.arange(self.rows)[None, :, None]
        layers = np.array([layer.start for layer in self.layers])[:, None, None]
        heads = (each.cumsum(1) - each)[:, None]
        return np.asarray(self.extent.start + layers + rows * each.sum(1)[:, None, None] + heads)

    def wipe(self) -> None:
        piece = slice(self.extent.start, self.extent.start + self.extent.count)
        for cells in (self.arena.keys, self.arena.values, self.arena.key_scales, self.arena.value_scales):
            # As bytes: not every device fills eight-bit floats.
            (cells.view(torch.int8) if cells.dtype in TOPS else cells)[piece].zero_()


class PagedKVCache:
    """One layer of one stream, as a `KVCache`."""

    def __init__(self, stream: Stream, start: int, rings: Sequence[int]) -> None:
        """start: of the layer in the stream's extent."""
        self.stream, self.position, self.start = stream, 0, start
        device, each = stream.arena.device, [stream.prompt + ring for ring in rings]
        self._most, self._even = max(rings), len(set(rings)) == 1
        self._rings = torch.tensor(rings, device=device)[:, None]  # (heads, 1)
        before = torch.tensor([sum(each[:head]) for head in range(len(each))], device=device)
        row = torch.arange(stream.rows, device=device)[:, None] * sum(each)
        self._starts = (start + row + before)[..., None]
        """(rows, heads, 1): each head's first cell in the extent."""

    @property
    def rows(self) -> int:
        return self.stream.rows

    def positions(self, x: Tensor) -> Tensor:
        return torch.arange(self.position, self.position + x.shape[1], device=x.device)

    def rewind(self, position: int) -> None:
        """Forget from `position` on: back to the prompt's beginning, or by no more than there is to spare."""
        plan = self.stream.arena.plan
        kept = plan.windows is None or position == 0
        assert kept or self.position - position <= plan.spare + 1, "its cells were written over"
        self.position = position

    def check_room(self, count: int) -> None:
        end = self.position + count
        most = self.stream.prompt + self.stream.tokens + self.stream.arena.plan.spare
        if end > most:
            raise memory_full(end, most)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.check_room(k.shape[2])
        begun, self.position = self.position, self.position + k.shape[2]
        self._remember(begun, k, v)
        if not begun:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self._look(begun, q)

    def _remember(self, begun: int, k: Tensor, v: Tensor) -> None:
        arena, prompt, end = self.stream.arena, self.stream.prompt, self.position
        assert end <= prompt or begun >= prompt, "a prompt is read in one pass"
        kind = arena.plan.kind
        at = torch.arange(begun, end, device=k.device)
        local = at if end <= prompt else prompt + (at - prompt) % self._rings  # (heads, tokens)
        place = self.stream.extent.start + self._starts + local
        for x, cells, scales in ((k, arena.keys, arena.key_scales), (v, arena.values, arena.value_scales)):
            if kind in TOPS:
                rounded, scales[place] = quantise(x, kind, scales.shape[1])
                cells.view(torch.int8)[place] = rounded.view(torch.int8)
            else:
                cells[place] = x

    def _look(self, begun: int, q: Tensor) -> Tensor:
        arena = self.stream.arena
        count = min(self.position, self.stream.prompt + self._most)
        seen = self._seen(begun, count, q.device)
        keys, values = (self._kept(cells, count) for cells in (arena.keys, arena.values))
        if arena.plan.kind not in TOPS:
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        key_scales, value_scales = (
            self._kept(scales, count) for scales in (arena.key_scales, arena.value_scales)
        )
        given, q = q.dtype, q.float() * q.shape[-1] ** -0.5
        blocks = [slice(at, min(at + BLOCK, count)) for at in range(0, count, BLOCK)]
        scores = torch.cat([q @ restored(keys[:, :, at], key_scales[:, :, at]).mT for at in blocks], dim=-1)
        if seen is not None:
            scores = scores.masked_fill(~seen, -torch.inf)
        shares = scores.softmax(-1)
        heard = [shares[..., at] @ restored(values[:, :, at], value_scales[:, :, at]) for at in blocks]
        return (torch.stack(heard).sum(0) if len(heard) > 1 else heard[0]).to(given)

    def _kept(self, cells: Tensor, count: int) -> Tensor:
        """(rows, heads, count, width): as they lie where all heads keep the same number; else brought side by
        side, where a head with fewer has its last one repeated."""
        heads, width, each = len(self._rings), cells.shape[1], self.stream.prompt + self._most
        if self._even:
            return cells.as_strided(
                (self.rows, heads, count, width),
                (heads * each * width, each * width, width, 1),
                (self.stream.extent.start + self.start) * width,
            )
        local = torch.arange(count, device=cells.device).clamp(max=self.stream.prompt + self._rings - 1)
        place = self.stream.extent.start + self._starts + local
        # As bytes: not every device looks up eight-bit floats.
        as_bytes = torch.int8 if cells.dtype in TOPS else cells.dtype
        return cells.view(as_bytes)[place].view(cells.dtype)

    def _seen(self, begun: int, count: int, device: torch.device) -> Tensor | None:
        """(heads, tokens, cells): which cells each of the latest tokens may look at; None if all."""
        prompt, end, plan = self.stream.prompt, self.position, self.stream.arena.plan
        slack = 0 if plan.windows is None else plan.spare
        if self._even and end - begun == 1 and end - prompt <= self._most - slack:
            return None
        cell = torch.arange(count, device=device)
        # The latest position that was written to each; a stale one comes out as too old to be seen.
        held = (end - 1 - (end - 1 - cell) % self._rings)[:, None]
        at = torch.arange(begun, end, device=device)[:, None]
        recent = (held <= at) & (held > at - (self._rings - slack)[..., None])
        return (cell < prompt) | (recent & (cell < prompt + self._rings)[:, None])


class PagedKVBatch:
    """Streams that have come differently far, each given a few tokens more: a step of continuous batching."""

    def __init__(self, own: Sequence[PagedKVCache | None], *, used: int, counts: Sequence[int]) -> None:
        """own: of each slot; None: nobody is there, or nobody who takes part. used: rows of each slot in
        what comes; counts: how many tokens each is given, the rest being padding."""
        self._own, self._used, self._counts = own, used, counts
        self.tables: KVBlockTables | None = None
        """For the kernel; set where there is one, and each is given one token."""

    def positions(self, x: Tensor) -> Tensor:
        starts = [0 if memory is None else memory.position for memory in self._own]
        at = [
            [start + min(ahead, count - 1) for ahead in range(x.shape[1])]
            for start, count in zip(starts, self._counts, strict=True)
            for _ in range(self._used)
        ]
        return torch.tensor(at, device=x.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.tables is not None:
            for memory in self._own:
                if memory is not None:
                    memory.position += 1
            return self.tables.attend(q, k, v)
        out = torch.zeros_like(q)
        for slot, (memory, count) in enumerate(zip(self._own, self._counts, strict=True)):
            if memory is not None:
                rows = slice(slot * self._used, slot * self._used + memory.rows)
                out[rows, :, :count] = memory.attend(
                    q[rows, :, :count], k[rows, :, :count], v[rows, :, :count]
                )
        return out

    def rewind(self, position: int) -> None:
        for memory in self._own:
            if memory is not None:
                memory.rewind(min(position, memory.position))


@dataclass(frozen=True, slots=True, kw_only=True)
class KVBlockTables:
    """Where the cells of each row are, for one layer: what the kernel is told."""

    arena: KVBlockPool
    starts: Tensor
    """(rows, heads), of the first cell; negative: nobody is there."""
    rings: Tensor
    """(rows, heads)"""
    prompts: Tensor
    """(rows,)"""
    lengths: Tensor
    """(rows,), positions before this token."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Tensor:
        """One token of each row, (rows, heads, 1, width). more: what the kernel may be told besides."""
        assert self.arena.attend is not None
        plan = self.arena.plan
        slack = 0 if plan.windows is None else plan.spare
        return self.arena.attend(
            q,
            k,
            v,
            self.arena,
            starts=self.starts,
            rings=self.rings,
            prompts=self.prompts,
            lengths=self.lengths,
            slack=slack,
            **more,
        )


def plain_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    arena: KVBlockPool,
    *,
    starts: Tensor,
    rings: Tensor,
    prompts: Tensor,
    lengths: Tensor,
    slack: int,
) -> Tensor:
    """The kernel's twin (backends/cuda/paged_attention.py), a head of a row at a time: what it must say, and how slowly."""
    out = torch.zeros_like(q)
    kind = arena.plan.kind
    for row, head in torch.nonzero(starts >= 0).tolist():
        start, ring = int(starts[row, head]), int(rings[row, head])
        prompt, length = int(prompts[row]), int(lengths[row])
        own = start + prompt + (length - prompt) % ring
        for x, cells, scales in ((k, arena.keys, arena.key_scales), (v, arena.values, arena.value_scales)):
            if kind in TOPS:
                rounded, scales[own] = quantise(x[row, head, 0], kind, scales.shape[1])
                cells[own] = rounded
            else:
                cells[own] = x[row, head, 0]
        count = min(length + 1, prompt + ring)
        at = torch.arange(count, device=q.device)
        age = (length - at) % ring
        place = start + at[(at < prompt) | (age < ring - slack)]
        # As bytes: not every device looks up eight-bit floats.
        as_bytes = torch.int8 if kind in TOPS else kind
        keys, values = (x.view(as_bytes)[place].view(kind) for x in (arena.keys, arena.values))
        if kind in TOPS:
            keys, values = (
                restored(keys, arena.key_scales[place]),
                restored(values, arena.value_scales[place]),
            )
        keys, values = keys.float(), values.float()
        score = keys @ (q[row, head, 0].float() * q.shape[-1] ** -0.5)
        out[row, head, 0] = (score.softmax(0) @ values).to(q.dtype)
    return out
