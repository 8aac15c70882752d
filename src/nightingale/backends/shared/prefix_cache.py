"""The prefix cache of the CPU runners: keys and values of the latest prompts.

A voice puts the same embeddings before the text of every prompt, and before both rows of a guided one; the
row without the text differs between two prompts only in its length. So of a new prompt only what follows its
longest common prefix with a cached one is computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class PrefixCache:
    def __init__(self, max_rows: int) -> None:
        self.entries: deque[tuple[Floats, dict[str, NDArray[Any]]]] = deque(maxlen=max_rows)
        """The inputs (time, width) of each row, and copies of its keys and values."""

    def restore(self, x: Floats, views: Callable[[int], Mapping[str, NDArray[Any]]]) -> int:
        """Write the longest cached prefix of x (time, width) into a row of the KV cache; return its length.

        `views` returns the row's keys and values up to a position. The last position of x is not restored.
        """
        length, longest = 0, None
        for other, cached in self.entries:
            both = min(len(x) - 1, len(other))
            different = np.flatnonzero((x[:both] != other[:both]).any(-1))
            shared = int(different[0]) if len(different) else both
            if shared > length:
                length, longest = shared, cached
        if longest is not None:
            for name, view in views(length).items():
                view[:] = longest[name][tuple(map(slice, view.shape))]
        return length

    def store(self, x: Floats, views: Mapping[str, NDArray[Any]]) -> None:
        """Copy the keys and values of a row whose inputs are x; the oldest entry is dropped."""
        if self.entries.maxlen:
            self.entries.append((x.copy(), {name: view.copy() for name, view in views.items()}))
