"""The flow's estimator on MLX: the velocity of each mel frame at one solver step.

The counterpart of models/chatterbox/s3gen/estimator.py. The times of the solver's steps are fixed, so what the
network makes of them is computed once, when the weights are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from nightingale.backends.mlx.arrays import (
    LayerNorm,
    Linear,
    compiled_elementwise,
    gelu,
    join_heads,
    split_heads,
    take_linear,
    take_norm,
)
from nightingale.backends.mlx.rendering.block_state import BlockState
from nightingale.backends.mlx.rendering.convolutions import Conv, take_conv
from nightingale.backends.mlx.weight_files import NetworkWeights
from nightingale.models.chatterbox.s3gen.config import FlowConfig

HEAD_WIDTH = 64
MISH_LINEAR_FROM = 20.0
"""From here on mish(x) equals x in float32; far above, its exponential would overflow."""


@compiled_elementwise
def mish(x: mx.array) -> mx.array:
    """Return x·tanh(ln(1 + eˣ)), computed as x·n/(n + 2) with n = eˣ·(eˣ + 2), in float32."""
    e = mx.exp(mx.minimum(x.astype(mx.float32), MISH_LINEAR_FROM))
    n = e * (e + 2)
    return (x * (n / (n + 2))).astype(x.dtype)


class NormedConv(NamedTuple):
    """A causal convolution, a norm over channels and Mish."""

    conv: Conv
    norm: LayerNorm

    def __call__(self, x: mx.array, state: BlockState) -> mx.array:
        y = self.conv.unpadded(state.prepend_inputs(x, self.conv.left))
        return mish(self.norm(y))


class AttentionBlock(NamedTuple):
    norm1: LayerNorm
    qkv: Linear
    out: Linear
    norm2: LayerNorm
    up: Linear
    down: Linear

    def __call__(self, x: mx.array, state: BlockState) -> mx.array:
        heads = self.qkv.weight.shape[0] // (3 * HEAD_WIDTH)
        q, k, v = (split_heads(part, heads) for part in mx.split(self.qkv(self.norm1(x)), 3, axis=-1))
        k, v = state.prepend_kv(k), state.prepend_kv(v)
        mask = state.mask(q.shape[2], k.shape[2])
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=HEAD_WIDTH**-0.5, mask=mask)
        x = x + self.out(join_heads(out))
        return x + self.down(gelu(self.up(self.norm2(x))))


class UNetStage(NamedTuple):
    """A resnet block, some transformer blocks and, at the ends of the U, a convolution."""

    block1: NormedConv
    times: mx.array
    """(steps, width): what the resnet block adds at each step of the solver."""
    block2: NormedConv
    residual: Conv
    blocks: list[AttentionBlock]
    closing: Conv | None

    def __call__(self, x: mx.array, step: int, state: BlockState) -> mx.array:
        """Apply all but the closing convolution, which follows the skip connection."""
        h = self.block1(x, state) + self.times[step]
        x = self.block2(h, state) + self.residual(x)
        for block in self.blocks:
            x = block(x, state)
        return x

    def close(self, x: mx.array, state: BlockState) -> mx.array:
        assert self.closing is not None
        return self.closing.unpadded(state.prepend_inputs(x, self.closing.left))


class FlowEstimator:
    """(batch, frames, 4·mel) inputs -> velocity (batch, frames, mel). times: those of the solver."""

    def __init__(self, config: FlowConfig, weights: NetworkWeights, times: Sequence[float]) -> None:
        width, inputs = config.estimator_width, 4 * config.mel_bands
        embedded = _embed_times(config, weights, times)

        def stage(name: str, inputs: int, *, closing: bool) -> UNetStage:
            return _take_stage(config, weights, f"{PREFIX}.{name}", inputs, embedded, closing=closing)

        self.down = stage("down_blocks.0", inputs, closing=True)
        self.middle = [
            stage(f"mid_blocks.{n}", width, closing=False) for n in range(config.estimator_mid_stages)
        ]
        self.up = stage("up_blocks.0", 2 * width, closing=True)
        self.final = _take_conv_block(weights, f"{PREFIX}.final_block", width, width)
        self.projection = take_conv(weights, f"{PREFIX}.final_proj", width, config.mel_bands, 1)

    def __call__(self, h: mx.array, step: int, state: BlockState) -> mx.array:
        skip = self.down(h, step, state)
        h = self.down.close(skip, state)
        for stage in self.middle:
            h = stage(h, step, state)
        h = self.up.close(self.up(mx.concatenate([h, skip], axis=-1), step, state), state)
        return self.projection(self.final(h, state))


PREFIX = "decoder.estimator"


def _embed_times(config: FlowConfig, weights: NetworkWeights, times: Sequence[float]) -> mx.array:
    """Return what the resnet blocks read of each step from t to r: (steps, 4 · width), after Mish."""
    width, inputs = 4 * config.estimator_width, 4 * config.mel_bands
    first = take_linear(weights, f"{PREFIX}.time_mlp.linear_1", inputs, width)
    second = take_linear(weights, f"{PREFIX}.time_mlp.linear_2", width, width)
    half = inputs // 2
    rate = np.exp(np.arange(half, dtype=np.float32) * np.float32(-math.log(10000.0) / (half - 1)))
    angle = mx.array(np.float32(1000) * np.array(times, np.float32)[:, None] * rate)
    y = first(mx.concatenate([mx.sin(angle), mx.cos(angle)], axis=-1))
    embedded = second(y * mx.sigmoid(y))
    if config.meanflow:
        mixer = take_linear(weights, f"{PREFIX}.time_embed_mixer", 2 * width, width, bias=False)
        return mish(mixer(mx.concatenate([embedded[:-1], embedded[1:]], axis=-1)))
    return mish(embedded[:-1])


def _take_stage(
    config: FlowConfig,
    weights: NetworkWeights,
    name: str,
    inputs: int,
    times: mx.array,
    *,
    closing: bool,
) -> UNetStage:
    width = config.estimator_width
    return UNetStage(
        block1=_take_conv_block(weights, f"{name}.0.block1", inputs, width),
        times=take_linear(weights, f"{name}.0.mlp.1", 4 * width, width)(times).astype(weights.dtype),
        block2=_take_conv_block(weights, f"{name}.0.block2", width, width),
        residual=take_conv(weights, f"{name}.0.res_conv", inputs, width, 1),
        blocks=[
            _take_transformer(config, weights, f"{name}.1.{n}") for n in range(config.estimator_stage_blocks)
        ],
        closing=take_conv(weights, f"{name}.2", width, width, 3, left=2) if closing else None,
    )


def _take_conv_block(weights: NetworkWeights, name: str, inputs: int, outputs: int) -> NormedConv:
    conv = take_conv(weights, f"{name}.block.0", inputs, outputs, 3, left=2)
    return NormedConv(conv, take_norm(weights, f"{name}.block.2", outputs))


def _take_transformer(config: FlowConfig, weights: NetworkWeights, name: str) -> AttentionBlock:
    width, inner = config.estimator_width, config.estimator_heads * HEAD_WIDTH
    parts = [weights.take(f"{name}.attn1.to_{part}.weight", inner, width) for part in "qkv"]
    return AttentionBlock(
        norm1=take_norm(weights, f"{name}.norm1", width),
        qkv=Linear(mx.concatenate(parts)),
        out=take_linear(weights, f"{name}.attn1.to_out.0", inner, width),
        norm2=take_norm(weights, f"{name}.norm3", width),
        up=take_linear(weights, f"{name}.ff.net.0.proj", width, 4 * width),
        down=take_linear(weights, f"{name}.ff.net.2", 4 * width, width),
    )
