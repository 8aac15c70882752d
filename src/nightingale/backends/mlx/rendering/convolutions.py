"""Convolutions over (batch, time, channels), whole or as a stream, and overlap-add.

On a GPU a convolution is MLX's own. On a CPU, where MLX has loops for dilated ones, it is one matrix product with
the unfolded input, in a third of the time. Transposed convolutions and the inverse STFT are a matrix product and
an overlap-add on both.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from nightingale.backends.mlx.arrays import runs_on_gpu
from nightingale.backends.mlx.weight_files import NetworkWeights


class Conv(NamedTuple):
    """A convolution with zeros before and after its input."""

    weight: mx.array
    """(outputs, taps, inputs)."""
    bias: mx.array
    left: int
    right: int
    stride: int = 1
    dilation: int = 1

    @property
    def span(self) -> int:
        """The inputs that one output depends on."""
        return (self.weight.shape[1] - 1) * self.dilation + 1

    def __call__(self, x: mx.array) -> mx.array:
        """Convolve a whole sequence."""
        return self.unpadded(mx.pad(x, [(0, 0), (self.left, self.right), (0, 0)]))

    def unpadded(self, x: mx.array) -> mx.array:
        outputs, taps, inputs = self.weight.shape
        if taps == self.stride == 1:
            return mx.addmm(self.bias, x, self.weight[:, 0].T)
        if runs_on_gpu():
            return mx.conv1d(x, self.weight, stride=self.stride, dilation=self.dilation) + self.bias
        return mx.addmm(self.bias, self._unfold(x), self.weight.reshape(outputs, taps * inputs).T)

    def _unfold(self, x: mx.array) -> mx.array:
        """Return the inputs of each output: (batch, columns, taps · inputs)."""
        batch, time, inputs = x.shape
        taps, columns = self.weight.shape[1], (time - self.span) // self.stride + 1
        strides = (time * inputs, self.stride * inputs, self.dilation * inputs, 1)
        return mx.as_strided(x, (batch, columns, taps, inputs), strides).reshape(batch, columns, -1)


def take_conv(
    weights: NetworkWeights,
    name: str,
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    left: int = 0,
    right: int = 0,
    stride: int = 1,
    dilation: int = 1,
) -> Conv:
    """Take a convolution whose weight the checkpoint stores as (outputs, inputs, taps)."""
    stored = weights.take(f"{name}.weight", outputs, inputs, kernel)
    weight, bias = mx.contiguous(stored.swapaxes(1, 2)), weights.take(f"{name}.bias", outputs)
    return Conv(weight, bias, left, right, stride, dilation)


def take_same_conv(
    weights: NetworkWeights,
    name: str,
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    dilation: int = 1,
) -> Conv:
    """Take a length-preserving convolution, centred on its output."""
    reach = (kernel - 1) * dilation // 2
    return take_conv(weights, name, inputs, outputs, kernel, left=reach, right=reach, dilation=dilation)


class OverlapAdd(NamedTuple):
    """A transposed convolution without bias: each input column adds `kernel` outputs, `stride` apart."""

    weight: mx.array
    """(inputs, groups · stride · outputs): taps are padded with zeros to whole groups of `stride`."""
    kernel: int
    stride: int
    outputs: int

    @classmethod
    def of(cls, weight: mx.array, stride: int) -> OverlapAdd:
        """weight: (inputs, taps, outputs)."""
        inputs, kernel, outputs = weight.shape
        padded = mx.pad(weight, [(0, 0), (0, -kernel % stride), (0, 0)])
        return cls(mx.contiguous(padded.reshape(inputs, -1)), kernel, stride, outputs)

    @property
    def kept(self) -> int:
        """Outputs that overlap with those of the next column."""
        return self.weight.shape[1] // self.outputs - self.stride

    def __call__(self, x: mx.array, kept: mx.array | None) -> tuple[mx.array, mx.array]:
        """Return what x (batch, columns, inputs) completes, and what overlaps with later columns.

        `kept` is what overlapped with this block, None at the start.
        """
        batch, columns, _ = x.shape
        if kept is None:
            kept = mx.zeros((batch, self.kept, self.outputs), x.dtype)
        if columns == 0:
            return kept[:, :0], kept
        groups = self.kept // self.stride + 1
        parts = mx.split(x @ self.weight, groups, axis=-1)
        shifted = [
            mx.pad(part, [(0, 0), (number, groups - 1 - number), (0, 0)]) for number, part in enumerate(parts)
        ]
        y = sum(shifted[1:], shifted[0]).reshape(batch, -1, self.outputs)
        done = columns * self.stride
        y = y + mx.pad(kept, [(0, 0), (0, done), (0, 0)])
        return y[:, :done], y[:, done:]
