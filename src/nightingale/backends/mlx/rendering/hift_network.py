"""HiFT's weights on MLX: what models/chatterbox/hift/generator.py and source.py hold."""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from nightingale.backends.mlx.arrays import Linear, named_arrays, take_linear
from nightingale.backends.mlx.rendering.convolutions import Conv, OverlapAdd, take_conv, take_same_conv
from nightingale.backends.mlx.weight_files import NetworkWeights
from nightingale.models.chatterbox.hift.config import (
    HARMONICS,
    ISTFT_HOP,
    ISTFT_SIZE,
    RESBLOCK_DILATIONS,
    UPSAMPLE_KERNELS,
    UPSAMPLE_RATES,
    HiftConfig,
)

BINS = ISTFT_SIZE // 2 + 1
F0_LAYERS = 5


class SnakeConv(NamedTuple):
    """The activation x + sin²(αx)/α, and a convolution."""

    alpha: mx.array
    conv: Conv


ResidualBlock = list[tuple[SnakeConv, SnakeConv]]
"""Residual pairs of dilated convolutions."""


class UpsamplingLayer(NamedTuple):
    conv: OverlapAdd
    bias: mx.array
    head: int
    """Outputs that are dropped at the start of an utterance, and after its last column."""


class HiftStage(NamedTuple):
    up: UpsamplingLayer
    source_down: Conv
    source_block: ResidualBlock
    blocks: list[ResidualBlock]


class MlxHift:
    """The vocoder's weights."""

    def __init__(self, config: HiftConfig, weights: NetworkWeights, *, dtype: mx.Dtype = mx.float32) -> None:
        """dtype: of the convolutions after f0, whose phase needs float32, as do the windows of the STFT."""
        self.config, self.dtype = config, dtype
        bands, width = config.mel_bands, config.f0_channels
        self.f0: list[Conv] = []
        for layer in range(F0_LAYERS):
            name, inputs = f"f0_predictor.condnet.{2 * layer}", width if layer else bands
            self.f0.append(take_same_conv(weights, name, inputs, width, 3))
        self.f0_head: Linear = take_linear(weights, "f0_predictor.classifier", width, 1)
        self.mix: Linear = take_linear(weights, "m_source.l_linear", HARMONICS, 1)
        self.f0_lookahead = sum(layer.right for layer in self.f0)
        """Frames that f0 looks ahead."""
        weights.dtype = dtype
        self.pre = take_same_conv(weights, "conv_pre", bands, config.base_channels, 7)
        self.stages = [_take_stage(config, weights, number) for number in range(len(UPSAMPLE_RATES))]
        channels = config.base_channels >> len(UPSAMPLE_RATES)
        self.post = take_same_conv(weights, "conv_post", channels, 2 * BINS, 7)
        self.analysis, self.synthesis = stft_matrix(), istft_columns()
        weights.finish(named_arrays(vars(self)))


def _take_stage(config: HiftConfig, weights: NetworkWeights, number: int) -> HiftStage:
    channels = config.base_channels >> (number + 1)
    rate, kernel = UPSAMPLE_RATES[number], UPSAMPLE_KERNELS[number]
    stored = weights.take(f"ups.{number}.weight", 2 * channels, channels, kernel)
    up = UpsamplingLayer(
        OverlapAdd.of(stored.swapaxes(1, 2), rate),
        weights.take(f"ups.{number}.bias", channels),
        (kernel - rate) // 2,
    )
    stride = math.prod(UPSAMPLE_RATES[number + 1 :])
    half, down = stride // 2, f"source_downs.{number}"
    taps = 2 * stride if half else 1
    kernels = config.resblock_kernels
    return HiftStage(
        up,
        take_conv(weights, down, 2 * BINS, channels, taps, left=half, right=half, stride=stride),
        _take_block(weights, f"source_resblocks.{number}", channels, config.source_kernels[number]),
        [
            _take_block(weights, f"resblocks.{number * len(kernels) + n}", channels, size)
            for n, size in enumerate(kernels)
        ],
    )


def _take_block(weights: NetworkWeights, name: str, channels: int, kernel: int) -> ResidualBlock:
    def layer(half: int, number: int, dilation: int) -> SnakeConv:
        own = f"{name}.convs{half}.{number}"
        conv = take_same_conv(weights, own, channels, channels, kernel, dilation=dilation)
        alpha = weights.take(f"{name}.activations{half}.{number}.alpha", channels).astype(mx.float32)
        return SnakeConv(alpha, conv)

    return [(layer(1, n, d), layer(2, n, 1)) for n, d in enumerate(RESBLOCK_DILATIONS)]


def hann() -> np.ndarray:
    return np.sin(np.pi * np.arange(ISTFT_SIZE) / ISTFT_SIZE) ** 2


def stft_matrix() -> mx.array:
    """Return the matrix from 16 samples to a column of the spectrum: real parts, then imaginary ones (16, 18)."""
    spectrum = np.fft.rfft(np.diag(hann()), axis=1)
    return mx.array(np.concatenate([spectrum.real, spectrum.imag], axis=1).astype(np.float32))


def istft_columns() -> OverlapAdd:
    """Return the inverse STFT of columns (…, 18 + 1): samples, and the energy of the windows beside them.

    The last input is 1 and stands for the energy, the sum of the squared windows, by which samples are divided.
    """
    window = hann()
    unit = np.eye(2 * BINS)
    samples = np.fft.irfft(unit[:, :BINS] + 1j * unit[:, BINS:], n=ISTFT_SIZE, axis=1) * window
    weight = np.zeros((2 * BINS + 1, ISTFT_SIZE, 2))
    weight[: 2 * BINS, :, 0], weight[2 * BINS, :, 1] = samples, window**2
    return OverlapAdd.of(mx.array(weight.astype(np.float32)), ISTFT_HOP)
