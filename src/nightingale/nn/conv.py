"""One-dimensional convolutions that say where they look.

`padding=` hides the one fact streaming lives on: how far a layer looks ahead. These layers name both sides.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from nightingale.nn.carry import Carry


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
            return super().forward(F.pad(x, (self.left, self.right)))
        return super().forward(F.pad(carry.behind(x, self.left), (0, self.right)))


def same_conv(inputs: int, outputs: int, kernel: int, *, dilation: int = 1, causal: bool) -> PaddedConv1d:
    """A length-preserving convolution, looking both ways or only back."""
    span = (kernel - 1) * dilation
    left = span if causal else span // 2
    return PaddedConv1d(inputs, outputs, kernel, left=left, right=span - left, dilation=dilation)


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
