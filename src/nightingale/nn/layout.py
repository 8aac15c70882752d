"""Weights laid out for the products a CPU is quick at. Values, names and shapes stay; only strides change.

*Linear layers that see many rows.* x·Wᵀ with W stored (outputs, inputs) asks BLAS for a transposed operand.
OpenBLAS is slow at that from nine rows on: 192 by 768 with 16 rows took 345 µs of a Neoverse-N1 (one thread;
520 µs of processor time where it may use two), and 190 µs with the same weight stored (inputs, outputs). MKL
does not care.

*Convolutions.* One tap of a convolution is a matrix product with a shifted view of the input; stored tap by
tap, a layer is as many products as it has taps and copies nothing (`nightingale.nn.conv`). With 32 to 192
channels that took 0.4 to 0.9 of the time of torch's convolution on the same machine. oneDNN compiles
convolutions for x86, so there they are left alone.
"""

from __future__ import annotations

import platform

import torch
from torch import nn

from nightingale.nn.conv import UpsamplingConv1d, can_shift


@torch.no_grad()
def for_many_rows(net: nn.Module) -> None:
    """Lay out every linear layer of a network that never sees a single row."""
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.t().contiguous().t()


@torch.no_grad()
def for_shifts(net: nn.Module, machine: str | None = None) -> None:
    """Lay out every convolution tap by tap, on machines where that pays."""
    if (machine or platform.machine()).lower() not in ("aarch64", "arm64"):
        return
    for layer in net.modules():
        if can_shift(layer):  # (outputs, inputs, taps)
            layer.weight.data = layer.weight.data.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        elif isinstance(layer, UpsamplingConv1d):  # (inputs, outputs, taps)
            layer.weight.data = layer.weight.data.permute(2, 1, 0).contiguous().permute(2, 1, 0)
