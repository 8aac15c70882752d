"""Page-aligned arrays for KV caches and for the tables of kernels."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray


def page_aligned_zeros(
    shape: tuple[int, ...], dtype: type[np.generic] = np.float32, *, huge_pages: bool = False
) -> NDArray[Any]:
    """Return zeros that start at a page and occupy memory only where they are written.

    In the huge pages that numpy asks for, a row of a KV cache would occupy its whole capacity at once. For buffers that
    are always full, huge_pages saves the time to find their pages.
    """
    memory = mmap.mmap(-1, np.dtype(dtype).itemsize * math.prod(shape))
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE if huge_pages else mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)
