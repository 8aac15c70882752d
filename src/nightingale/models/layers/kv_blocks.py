"""Storage of the paged KV cache: quantized blocks in one pool, and per-head windows (docs/kv-cache.md).

A block holds the key and the value of one position of one head:

    k ≈ block * scale,  scale = max|k| / 127,  one scale for 16 values of a key, and for 32 of a value

Keys need more scales than values: after RoPE some of their channels are large and others small.

All of the prompt is kept. Of the generated tokens each head keeps a window of its own length
(decoding/kv_retention.py): its blocks after the prompt are a ring buffer with a few spare positions, so that
this many positions can be rewound exactly. Positions are absolute: RoPE is applied before keys are stored.

The prompt attends with its exact keys and values, which are quantized when they are stored. A generated token
attends to its own quantized key, as later tokens will: a pass over several tokens equals several passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from nightingale.errors import MemoryFull
from nightingale.models.layers.kv_cache import lazy_zeros

MAX_QUANTIZED: Final = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest value of each quantized dtype."""
SCALE_DTYPE: Final = torch.float16
MIN_SCALE: Final = 6.2e-5
"""The smallest float16 that is not subnormal."""
KEY_GROUP: Final = 16
VALUE_GROUP: Final = 32
"""Values that share a scale."""


def quantize(x: Tensor, dtype: torch.dtype, groups: int) -> tuple[Tensor, Tensor]:
    """Quantize (…, width); return the values in this dtype and their scales (…, groups)."""
    top = MAX_QUANTIZED[dtype]
    x = x.float().unflatten(-1, (groups, -1))
    scales = (x.abs().amax(-1) / top).clamp(min=MIN_SCALE).to(SCALE_DTYPE)
    values = (x / scales[..., None].float()).clamp(-top, top).flatten(-2)
    return (values.round() if dtype == torch.int8 else values).to(dtype), scales


def dequantize(values: Tensor, scales: Tensor) -> Tensor:
    """Return the float32 of values (…, width) and their scales (…, groups)."""
    return (values.float().unflatten(-1, (scales.shape[-1], -1)) * scales[..., None].float()).flatten(-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVBlockLayout:
    """The positions that each head keeps, and their dtype."""

    layers: int
    heads: int
    width: int
    dtype: torch.dtype
    windows: tuple[tuple[int, ...], ...] | None = None
    """windows[layer][head]: positions after the prompt that the head keeps; None keeps all."""
    rewind_margin: int = 0
    """The largest number of positions that can be rewound."""

    @property
    def window_margin(self) -> int:
        """The positions of a ring that are not attended to, because they wait to be rewound."""
        return 0 if self.windows is None else self.rewind_margin

    @property
    def groups(self) -> tuple[int, int]:
        """The number of scales of a key, and of a value."""
        if self.dtype not in MAX_QUANTIZED:
            return 0, 0
        return max(1, self.width // KEY_GROUP), max(1, self.width // VALUE_GROUP)

    @property
    def block_bytes(self) -> int:
        return 2 * self.width * self.dtype.itemsize + sum(self.groups) * SCALE_DTYPE.itemsize

    def ring_sizes(self, tokens: int) -> list[list[int]]:
        """Return the blocks after the prompt of each layer and head, for this many tokens."""
        return [[window + self.rewind_margin for window in layer] for layer in self._kept(tokens)]

    def blocks(self, prompt: int, tokens: int) -> int:
        """Return the blocks that one row of a sequence of at most this length needs."""
        return self.layers * self.heads * prompt + sum(map(sum, self.ring_sizes(tokens)))

    def held_blocks(self, prompt: int, tokens: int) -> int:
        """Return the blocks that one row attends to after this many tokens."""
        return self.layers * self.heads * prompt + sum(map(sum, self._kept(tokens)))

    def _kept(self, tokens: int) -> list[list[int]]:
        windows = self.windows or ((tokens,) * self.heads,) * self.layers
        return [[min(window, tokens) for window in layer] for layer in windows]


@dataclass(slots=True)
class Extent:
    """A contiguous run of blocks that belongs to one sequence. The pool may move it."""

    start: int
    count: int


BlockAttention = Callable[..., Tensor]
"""The kernel of backends/shared/paged_attention.py."""


class KVBlockPool:
    """The blocks of all sequences in one buffer; a sequence has one contiguous extent.

    `attend` is the attention kernel; None uses PyTorch.
    """

    def __init__(
        self, *, blocks: int, layout: KVBlockLayout, device: torch.device, attend: BlockAttention | None
    ) -> None:
        self.layout, self.blocks, self.device, self.attend = layout, blocks, device, attend
        self.keys, self.values = (lazy_zeros((blocks, layout.width), layout.dtype, device) for _ in range(2))
        self.key_scales, self.value_scales = (
            lazy_zeros((blocks, groups), SCALE_DTYPE, device) for groups in layout.groups
        )
        self.extents: list[Extent] = []
        """Sorted by start."""
        self.generation = 0
        """Increases whenever extents may have moved."""

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        return self.keys, self.values, self.key_scales, self.value_scales

    @property
    def bytes(self) -> int:
        return self.blocks * self.layout.block_bytes

    @property
    def used_bytes(self) -> int:
        return sum(extent.count for extent in self.extents) * self.layout.block_bytes

    def allocate(self, count: int) -> Extent:
        """Return an extent of `count` blocks with arbitrary contents; other extents may be moved.

        Raises:
            MemoryFull: Fewer blocks are free.
        """
        self.generation += 1
        extent = self._first_fit(count)
        if extent is None:
            self._compact()
            extent = self._first_fit(count)
        if extent is None:
            raise MemoryFull(
                "the KV cache has no room for another sequence",
                got=f"{count * self.layout.block_bytes} bytes wanted, {self.bytes - self.used_bytes} free",
                allowed=f"{self.bytes} bytes for all sequences",
                fix="Speak a shorter text, or open the engine with more memory.",
            )
        return extent

    def release(self, extent: Extent) -> None:
        self.extents.remove(extent)

    def _first_fit(self, count: int) -> Extent | None:
        start = 0
        for at, extent in enumerate([*self.extents, Extent(self.blocks, 0)]):
            if extent.start - start >= count:
                self.extents.insert(at, fresh := Extent(start, count))
                return fresh
            start = extent.start + extent.count
        return None

    def _compact(self) -> None:
        """Move all extents to the front."""
        start = 0
        for extent in self.extents:
            if extent.start != start:
                for buffer in self.buffers:
                    # Through a copy: source and target may overlap.
                    moved = buffer[extent.start : extent.start + extent.count].clone()
                    buffer[start : start + extent.count] = moved
                extent.start = start
            start += extent.count
