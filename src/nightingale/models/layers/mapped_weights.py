"""Weights are mapped from their file. What was copied from there need not stay in memory a second time."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Final

from torch import Tensor

PAGE_OUT: Final = 21
"""MADV_PAGEOUT of Linux: as if memory were short. Pages of a file are dropped, and read again if somebody
asks for them; nothing is ever lost, so it does no harm to be wrong about where a weight lies."""
SMALLEST: Final = 2**20
"""Bytes of a weight that is worth the call. Small models stay in the system's cache, and start sooner."""


def let_go(weight: Tensor) -> None:
    """The pages of a weight that was copied are not needed by this process. A hint: it may do nothing."""
    start, size = weight.data_ptr(), weight.numel() * weight.element_size()
    if not sys.platform.startswith("linux") or size < SMALLEST or weight.device.type != "cpu":
        return
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), PAGE_OUT)
