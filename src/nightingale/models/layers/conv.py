"""One-dimensional convolutions with explicit left and right padding.

Streaming depends on how far a layer looks ahead, which `padding=` hides. These layers name both sides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.models.layers.streaming_state import StreamingState


class PaddedConv1d(nn.Conv1d):
    """A convolution over (batch, channels, time) with zero padding on each side."""

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
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, dilation=dilation)
        self.left, self.right = left, right

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        """With a state, x continues the previous block and is padded on the right only."""
        if state is None:
            return convolve(self, F.pad(x, (self.left, self.right)))
        joined = state.prepend_inputs(x, self.left)
        return convolve(self, F.pad(joined, (0, self.right)) if self.right else joined)


def padding_of(layer: nn.Conv1d) -> tuple[int, int]:
    """Return the zeros that a convolution puts before and after its input."""
    return (layer.left, layer.right) if isinstance(layer, PaddedConv1d) else (0, 0)


def same_conv(inputs: int, outputs: int, kernel: int, *, dilation: int = 1, causal: bool) -> PaddedConv1d:
    """Return a length-preserving convolution, centred or causal."""
    span = (kernel - 1) * dilation
    left = span if causal else span // 2
    return PaddedConv1d(inputs, outputs, kernel, left=left, right=span - left, dilation=dilation)


class CustomConv1d(PaddedConv1d, ABC):
    """A convolution whose weights and arithmetic belong to a backend."""

    def __init__(self, original: nn.Conv1d) -> None:
        nn.Module.__init__(self)
        for name in ("in_channels", "out_channels", "kernel_size", "dilation", "stride", "groups"):
            setattr(self, name, getattr(original, name))
        self.left, self.right = padding_of(original)

    @abstractmethod
    def convolve_unpadded(self, x: Tensor) -> Tensor:
        """Compute what `convolve` computes."""


class UpsamplingConv1d(nn.ConvTranspose1d):
    """A transposed convolution with exactly `stride` outputs per input, around which its kernel is centred."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding=(kernel - stride) // 2)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        length = x.shape[-1] * self.stride[0]
        if _is_by_tap(self.weight):
            assert self.bias is not None
            cut = int(self.padding[0])
            y = transposed_convolve(x, self.weight, self.stride[0])[..., cut : cut + length]
            return y + self.bias[:, None]
        return super().forward(x)


def convolve(layer: nn.Conv1d, x: Tensor) -> Tensor:
    """Apply a convolution to (batch, channels, time) without padding.

    It is one matrix product per tap where the weights are stored tap by tap (weight_layout.py), and PyTorch's
    convolution otherwise. A layer of another dtype than x casts x and returns x's dtype.
    """
    if isinstance(layer, CustomConv1d):
        return layer.convolve_unpadded(x)
    weight, bias, dilation = layer.weight, layer.bias, layer.dilation[0]
    if weight.dtype != x.dtype:
        cast = x.to(weight.dtype)
        return F.conv1d(cast, weight, bias, layer.stride, 0, layer.dilation, layer.groups).to(x.dtype)
    outputs, inputs, _ = weight.shape
    by_tap = weight.stride() == (inputs, 1, outputs * inputs)
    if not by_tap or bias is None or not supports_tap_products(layer):
        return F.conv1d(x, weight, bias, layer.stride, 0, layer.dilation, layer.groups)
    rows = [_tap_products(row, weight, bias, dilation) for row in x]
    return rows[0][None] if len(rows) == 1 else torch.stack(rows)


def _tap_products(x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """(channels, time) -> (outputs, time less the kernel's span)."""
    taps = weight.shape[2]
    columns = x.shape[1] - (taps - 1) * dilation
    y = torch.addmm(bias[:, None], weight[..., 0], x[:, :columns])
    for tap in range(1, taps):
        y.addmm_(weight[..., tap], x[:, tap * dilation : tap * dilation + columns])
    return y


def transposed_convolve(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Apply a transposed convolution without bias or padding to (batch, inputs, time).

    weight is (inputs, outputs, taps). Where it is stored tap by tap, `stride` taps at a time are one product.
    """
    if not _is_by_tap(weight):
        return F.conv_transpose1d(x, weight, stride=stride)
    rows = [_transposed_tap_products(row, weight.permute(2, 1, 0), stride) for row in x]
    return rows[0][None] if len(rows) == 1 else torch.stack(rows)


def _is_by_tap(weight: Tensor) -> bool:
    """Return whether (inputs, outputs, taps) are stored tap by tap (weight_layout.py)."""
    return weight.permute(2, 1, 0).is_contiguous()


def _transposed_tap_products(x: Tensor, by_tap: Tensor, stride: int) -> Tensor:
    """(inputs, time) and (taps, outputs, inputs) -> (outputs, longer)."""
    taps, outputs, inputs = by_tap.shape
    weight = by_tap.view(taps * outputs, inputs)
    groups = -(-taps // stride)
    # Column n of y holds outputs n·stride …; input n contributes to columns n to n + groups - 1.
    columns = x.shape[1] + groups - 1
    padded = F.pad(x, (groups - 1, groups - 1))
    y = x.new_zeros(stride * outputs, columns)
    for group in range(groups):
        part = weight[group * stride * outputs : (group + 1) * stride * outputs]
        y[: len(part)].addmm_(part, padded[:, groups - 1 - group : groups - 1 - group + columns])
    whole = y.view(stride, outputs, columns).permute(1, 2, 0).reshape(outputs, columns * stride)
    return whole[:, : (x.shape[1] - 1) * stride + taps]


def supports_tap_products(layer: nn.Module) -> TypeGuard[nn.Conv1d]:
    """Return whether `convolve` can compute this layer tap by tap."""
    if not isinstance(layer, nn.Conv1d) or isinstance(layer, CustomConv1d):
        return False
    return layer.stride[0] == layer.groups == 1
