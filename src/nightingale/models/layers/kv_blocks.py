"""T3's memory in fewer bytes: cells of eight bits, and heads that keep only what they look at.

Why it helps. A stream's memory grows with every position, and each step reads all of it; with many streams
it is more than the weights are. A cell is the key and the value of one position of one head:

    k ≈ cell * scale,  scale = max|k| / 127,  one for sixteen numbers of a key, and for 32 of a value

which with scales in half precision is 140 bytes of 256 in bfloat16, for a head of 64. Keys need more scales
than values: turned by their positions, some of their channels are large and others small, and one scale for
all rounds the small ones away (docs/kv-cache.md has the numbers). Cells are never written out in full: a CPU
takes a block of them at a time, and a GPU reads them as they are (backends/cuda/paged_attention.py).

What is kept. All of the prompt, always; of what was spoken since, each head keeps a window of its own
length (decoding/kv_retention.py). Behind the prompt its cells are a ring, with a few to spare: so many positions
can be taken back, and all is as if they had never been. Positions stay absolute: keys are turned before they
come here.

What is exact. A prompt is read by its own exact keys and values, and rounded when it is remembered. A token
sees itself rounded, as the tokens after it will: so a pass over several says what so many passes say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from nightingale.errors import MemoryFull
from nightingale.models.layers.kv_cache import lazy_zeros

TOPS: Final = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest number of each kind that has scales."""
SCALE: Final = torch.float16
LEAST_SCALE: Final = 6.2e-5
"""The least that half precision holds in full."""
KEY_GROUP: Final = 16
VALUE_GROUP: Final = 32
"""Numbers that share a scale."""


def quantise(x: Tensor, kind: torch.dtype, groups: int) -> tuple[Tensor, Tensor]:
    """(…, width) to cells of this kind, and their scales (…, groups)."""
    top = TOPS[kind]
    x = x.float().unflatten(-1, (groups, -1))
    scales = (x.abs().amax(-1) / top).clamp(min=LEAST_SCALE).to(SCALE)
    cells = (x / scales[..., None].float()).clamp(-top, top).flatten(-2)
    return (cells.round() if kind == torch.int8 else cells).to(kind), scales


def restored(cells: Tensor, scales: Tensor) -> Tensor:
    """What cells (…, width) and their scales (…, groups) are worth."""
    return (cells.float().unflatten(-1, (scales.shape[-1], -1)) * scales[..., None].float()).flatten(-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVBlockLayout:
    """How much is kept of a stream, and in which kind of number."""

    layers: int
    heads: int
    width: int
    kind: torch.dtype
    windows: tuple[tuple[int, ...], ...] | None = None
    """windows[layer][head]: positions after the prompt that it keeps; None keeps all."""
    spare: int = 0
    """So many of the latest positions may be taken back."""

    @property
    def groups(self) -> tuple[int, int]:
        """Scales of a key, and of a value."""
        if self.kind not in TOPS:
            return 0, 0
        return max(1, self.width // KEY_GROUP), max(1, self.width // VALUE_GROUP)

    @property
    def cell_bytes(self) -> int:
        """Of one position of one head, key and value."""
        return 2 * self.width * self.kind.itemsize + sum(self.groups) * SCALE.itemsize

    def rings(self, tokens: int) -> list[list[int]]:
        """Of each layer and head: cells after the prompt, for so many tokens."""
        windows = self.windows or ((tokens,) * self.heads,) * self.layers
        return [[min(window, tokens) + self.spare for window in layer] for layer in windows]

    def cells(self, prompt: int, tokens: int) -> int:
        """Of one row of a stream that may come so far."""
        return self.layers * self.heads * prompt + sum(map(sum, self.rings(tokens)))

    def held_cells(self, prompt: int, tokens: int) -> int:
        """Of one row, that a stream which has spoken so many tokens can still see."""
        windows = self.windows or ((tokens,) * self.heads,) * self.layers
        seen = sum(min(window, tokens) for layer in windows for window in layer)
        return self.layers * self.heads * prompt + seen


@dataclass(slots=True)
class Extent:
    """Cells that belong to one stream. It may be moved."""

    start: int
    count: int


Attend = Callable[..., Tensor]
"""`attend_cells` of backends/cuda/paged_attention.py, where there is a GPU for it."""


class KVBlockPool:
    """The cells of everybody, in one buffer; a stream has one piece of it."""

    def __init__(
        self, *, cells: int, plan: KVBlockLayout, device: torch.device, attend: Attend | None
    ) -> None:
        self.plan, self.cells, self.device, self.attend = plan, cells, device, attend
        self.keys, self.values = (lazy_zeros((cells, plan.width), plan.kind, device) for _ in range(2))
        self.key_scales, self.value_scales = (
            lazy_zeros((cells, groups), SCALE, device) for groups in plan.groups
        )
        self.extents: list[Extent] = []
        """By where they start."""
        self.moves = 0
        """Grows whenever a stream's cells may have changed places."""

    @property
    def bytes(self) -> int:
        return self.cells * self.plan.cell_bytes

    @property
    def used_bytes(self) -> int:
        return sum(extent.count for extent in self.extents) * self.plan.cell_bytes

    def take(self, count: int) -> Extent:
        """So many cells in one piece, zero or not; streams are pushed together if they must be."""
        self.moves += 1
        extent = self._fit(count)
        if extent is None:
            self._push_together()
            extent = self._fit(count)
        if extent is None:
            free = self.cells - sum(other.count for other in self.extents)
            size = self.plan.cell_bytes
            raise MemoryFull(
                "there is no room for another stream",
                got=f"{count * size} bytes wanted, {free * size} free",
                allowed=f"{self.bytes} bytes for all streams",
                fix="Speak a shorter text, or open the engine with more memory.",
            )
        return extent

    def give(self, extent: Extent) -> None:
        self.extents.remove(extent)

    def _fit(self, count: int) -> Extent | None:
        start = 0
        for at, extent in enumerate([*self.extents, Extent(self.cells, 0)]):
            if extent.start - start >= count:
                self.extents.insert(at, fresh := Extent(start, count))
                return fresh
            start = extent.start + extent.count
        return None

    def _push_together(self) -> None:
        start = 0
        for extent in self.extents:
            if extent.start != start:
                for cells in (self.keys, self.values, self.key_scales, self.value_scales):
                    # A copy between: the two places may overlap.
                    piece = cells[extent.start : extent.start + extent.count].clone()
                    cells[start : start + extent.count] = piece
                extent.start = start
            start += extent.count
