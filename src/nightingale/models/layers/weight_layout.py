"""Weight layouts that make CPU products faster. Values, names and shapes stay; only strides change.

*Linear layers over many rows.* x·Wᵀ with W stored (outputs, inputs) gives BLAS a transposed operand, with which
OpenBLAS is slow from nine rows on: 192 by 768 with 16 rows took 345 µs on a Neoverse-N1, and 190 µs with the
same weight stored (inputs, outputs). MKL is equally fast.

*Convolutions.* One tap is a matrix product with a shifted view of the input. Stored tap by tap, a layer copies
nothing (conv.py). With 32 to 192 channels that took 0.4 to 0.9 of the time of PyTorch's convolution on the same
machine. oneDNN compiles convolutions for x86, so there they stay as they are.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor, nn

from nightingale.models.layers.conv import UpsamplingConv1d, supports_tap_products

PAGE_OUT: Final = 21
"""Linux's MADV_PAGEOUT: evict the pages as if memory were short. A file's pages are read again on access, so
nothing is lost if the weight is not mapped from a file after all."""
MIN_BYTES: Final = 2**20
"""Smaller weights are not worth the call. Small models stay in the page cache, and start sooner."""


@torch.no_grad()
def pack_for_rendering(net: nn.Module, machine: str | None = None) -> None:
    """Lay out a network that never computes a single row, in one buffer.

    All weights are copied, also those that keep their layout: they are mapped from their file, whose pages
    count as memory while any weight refers to it, and each separate buffer would waste half a megabyte
    (PyTorch on ARM).
    """
    orders = {id(weight): order for weight, order in _axis_orders(net, machine)}
    for dtype in {weight.dtype for weight in net.parameters()}:
        weights = [weight for weight in net.parameters() if weight.dtype == dtype]
        free = torch.empty(sum(weight.numel() for weight in weights), dtype=dtype)
        for weight in weights:
            order = orders.get(id(weight), tuple(range(weight.dim())))
            own, free = free[: weight.numel()], free[weight.numel() :]
            stored = own.view([weight.shape[axis] for axis in order]).copy_(weight.permute(order))
            release_pages(weight)
            weight.data = stored.permute([order.index(axis) for axis in range(weight.dim())])


def _axis_orders(net: nn.Module, machine: str | None) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    """Yield the weights that need another order of axes, and that order, outermost axis first."""
    by_tap = (machine or platform.machine()).lower() in ("aarch64", "arm64")
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            yield layer.weight, (1, 0)
        elif by_tap and supports_tap_products(layer):  # (outputs, inputs, taps)
            yield layer.weight, (2, 0, 1)
        elif by_tap and isinstance(layer, UpsamplingConv1d):  # (inputs, outputs, taps)
            yield layer.weight, (2, 1, 0)


def release_pages(weight: Tensor) -> None:
    """Tell Linux that this process no longer needs the pages of a mapped weight. It may ignore the hint."""
    start, size = weight.data_ptr(), weight.numel() * weight.element_size()
    if not sys.platform.startswith("linux") or size < MIN_BYTES or weight.device.type != "cpu":
        return
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), PAGE_OUT)
