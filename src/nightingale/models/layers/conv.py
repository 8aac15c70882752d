"""One-dimensional convolutions that say where they look.

`padding=` hides the one fact streaming lives on: how far a layer looks ahead. These layers name both sides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.layers.streaming_state import Carry


class PaddedConv1d(nn.Conv1d):
    """A convolution over (batch, channels, time) with explicit zero padding on each side."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        left: int,
        right: int,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, dilation=dilation, groups=groups, bias=bias)
        self.left, self.right = left, right

    def forward(self, x: Tensor, carry: Carry | None = None) -> Tensor:
        """With a carry, x continues what came before it and zeros are padded on the right only."""
        if carry is None:
            return convolve(self, F.pad(x, (self.left, self.right)))
        joined = carry.behind(x, self.left)
        return convolve(self, F.pad(joined, (0, self.right)) if self.right else joined)


def same_conv(inputs: int, outputs: int, kernel: int, *, dilation: int = 1, causal: bool) -> PaddedConv1d:
    """A length-preserving convolution, looking both ways or only back."""
    span = (kernel - 1) * dilation
    left = span if causal else span // 2
    return PaddedConv1d(inputs, outputs, kernel, left=left, right=span - left, dilation=dilation)


class OwnConv1d(PaddedConv1d, ABC):
    """A convolution that a faster way has taken over, weights and all: `convolved` does the work."""

    def __init__(self, plain: nn.Conv1d) -> None:
        nn.Module.__init__(self)
        self.in_channels, self.out_channels = plain.in_channels, plain.out_channels
        self.kernel_size, self.dilation, self.stride = plain.kernel_size, plain.dilation, plain.stride
        self.groups = plain.groups
        self.left, self.right = (plain.left, plain.right) if isinstance(plain, PaddedConv1d) else (0, 0)

    @abstractmethod
    def convolved(self, x: Tensor) -> Tensor:
        """As `convolve`."""


class UpsamplingConv1d(nn.ConvTranspose1d):
    """A transposed convolution giving exactly `stride` outputs per input.

    Two-sided, it centres its kernel; causal, output n depends on inputs up to n // stride only.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, *, causal: bool) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding=0 if causal else (kernel - stride) // 2)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        y = super().forward(x)
        return y[..., : x.shape[-1] * self.stride[0]] if self.causal else y


def convolve(layer: nn.Conv1d, x: Tensor) -> Tensor:
    """(batch, channels, time) through a convolution that pads nothing: one product for each tap, where the
    weights lie tap by tap (`nightingale.models.layers.weight_layout`), and else torch's way. A layer in another precision than
    x rounds it, and gives x's back."""
    if isinstance(layer, OwnConv1d):
        return layer.convolved(x)
    weight, bias, dilation = layer.weight, layer.bias, layer.dilation[0]
    if weight.dtype != x.dtype:
        rounded = x.to(weight.dtype)
        return F.conv1d(rounded, weight, bias, layer.stride, 0, layer.dilation, layer.groups).to(x.dtype)
    if not _lies_by_tap(weight) or bias is None or not can_shift(layer):
        return F.conv1d(x, weight, bias, layer.stride, 0, layer.dilation, layer.groups)
    rows = [_shifted_products(row, weight, bias, dilation) for row in x]
    return rows[0][None] if len(rows) == 1 else torch.stack(rows)


def _shifted_products(x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """(channels, time) -> (outputs, time less the kernel's span)."""
    taps = weight.shape[2]
    columns = x.shape[1] - (taps - 1) * dilation
    y = torch.addmm(bias[:, None], weight[..., 0], x[:, :columns])
    for tap in range(1, taps):
        y.addmm_(weight[..., tap], x[:, tap * dilation : tap * dilation + columns])
    return y


def spread(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """A transposed convolution without bias or padding: (batch, inputs, time) -> (batch, outputs, longer).

    weight: (inputs, outputs, taps). Where it lies tap by tap, `stride` taps at a time are one product.
    """
    by_tap = weight.permute(2, 1, 0)
    if not by_tap.is_contiguous():
        return F.conv_transpose1d(x, weight, stride=stride)
    rows = [_spread_products(row, by_tap, stride) for row in x]
    return rows[0][None] if len(rows) == 1 else torch.stack(rows)


def _spread_products(x: Tensor, by_tap: Tensor, stride: int) -> Tensor:
    """(inputs, time) and (taps, outputs, inputs) -> (outputs, longer)."""
    taps, outputs, inputs = by_tap.shape
    weight = by_tap.view(taps * outputs, inputs)
    turns = -(-taps // stride)
    # Column n of y holds the places n·stride … of the result; input n reaches columns n to n + turns - 1.
    columns = x.shape[1] + turns - 1
    padded = F.pad(x, (turns - 1, turns - 1))
    y = x.new_zeros(stride * outputs, columns)
    for turn in range(turns):
        part = weight[turn * stride * outputs : (turn + 1) * stride * outputs]
        y[: len(part)].addmm_(part, padded[:, turns - 1 - turn : turns - 1 - turn + columns])
    whole = y.view(stride, outputs, columns).permute(1, 2, 0).reshape(outputs, columns * stride)
    return whole[:, : (x.shape[1] - 1) * stride + taps]


def can_shift(layer: nn.Module) -> TypeGuard[nn.Conv1d]:
    """Whether a layer is a convolution that `convolve` can do tap by tap."""
    if not isinstance(layer, nn.Conv1d) or isinstance(layer, OwnConv1d):
        return False
    return layer.stride[0] == layer.groups == 1


def _lies_by_tap(weight: Tensor) -> bool:
    outputs, inputs, _ = weight.shape
    return weight.stride() == (inputs, 1, outputs * inputs)
