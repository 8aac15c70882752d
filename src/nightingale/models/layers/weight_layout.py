"""Weights laid out for the products a CPU is quick at. Values, names and shapes stay; only strides change.

*Linear layers that see many rows.* x·Wᵀ with W stored (outputs, inputs) asks BLAS for a transposed operand.
OpenBLAS is slow at that from nine rows on: 192 by 768 with 16 rows took 345 µs of a Neoverse-N1 (one thread;
520 µs of processor time where it may use two), and 190 µs with the same weight stored (inputs, outputs). MKL
does not care.

*Convolutions.* One tap of a convolution is a matrix product with a shifted view of the input; stored tap by
tap, a layer is as many products as it has taps and copies nothing (`nightingale.models.layers.conv`). With 32 to 192
channels that took 0.4 to 0.9 of the time of torch's convolution on the same machine. oneDNN compiles
convolutions for x86, so there they are left alone.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from nightingale.models.layers.conv import UpsamplingConv1d, can_shift
from nightingale.models.layers.mapped_weights import let_go


@torch.no_grad()
def for_rendering(net: nn.Module, machine: str | None = None) -> None:
    """Lay out a network that renders: it never sees a single row.

    All weights are copied into one stretch of memory, also those that lie well already. They are mapped from
    their file, whose pages count as memory for as long as a single weight holds on to it; and each stretch by
    itself would cost half a megabyte more than it needs (torch on ARM).
    """
    orders = {id(weight): order for weight, order in _orders(net, machine)}
    weights = [*net.parameters()]
    for dtype in {weight.dtype for weight in weights}:
        _lie_together([weight for weight in weights if weight.dtype == dtype], orders)


def _lie_together(weights: Sequence[Tensor], orders: Mapping[int, tuple[int, ...]]) -> None:
    """All of one precision."""
    room = torch.empty(sum(weight.numel() for weight in weights), dtype=weights[0].dtype)
    for weight in weights:
        order = orders.get(id(weight), tuple(range(weight.dim())))
        own, room = room[: weight.numel()], room[weight.numel() :]
        lying = own.view([weight.shape[axis] for axis in order]).copy_(weight.permute(order))
        let_go(weight)
        weight.data = lying.permute([order.index(axis) for axis in range(weight.dim())])


@torch.no_grad()
def for_many_rows(net: nn.Module) -> None:
    """Lay out every linear layer of a network that never sees a single row."""
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.t().contiguous().t()


def _orders(net: nn.Module, machine: str | None) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    """Weights that lie better in another order of their axes, and that order, the slowest first."""
    shifting = (machine or platform.machine()).lower() in ("aarch64", "arm64")
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            yield layer.weight, (1, 0)
        elif shifting and can_shift(layer):  # (outputs, inputs, taps)
            yield layer.weight, (2, 0, 1)
        elif shifting and isinstance(layer, UpsamplingConv1d):  # (inputs, outputs, taps)
            yield layer.weight, (2, 1, 0)
