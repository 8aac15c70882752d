"""Release of the pages of weights that are mapped from their file and were copied elsewhere."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Final

from torch import Tensor

PAGE_OUT: Final = 21
"""Linux's MADV_PAGEOUT: evict the pages as if memory were short. A file's pages are read again on access, so
nothing is lost if the weight is not mapped from a file after all."""
MIN_BYTES: Final = 2**20
"""Smaller weights are not worth the call. Small models stay in the page cache, and start sooner."""


def release_pages(weight: Tensor) -> None:
    """Tell Linux that this process no longer needs the pages of a weight. It may ignore the hint."""
    start, size = weight.data_ptr(), weight.numel() * weight.element_size()
    if not sys.platform.startswith("linux") or size < MIN_BYTES or weight.device.type != "cpu":
        return
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), PAGE_OUT)
