"""Speech tokens to mel-rate features on MLX: models/chatterbox/s3gen/token_encoder.py."""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from nightingale.backends.mlx.arrays import (
    LayerNorm,
    Linear,
    join_heads,
    split_heads,
    take_linear,
    take_norm,
)
from nightingale.backends.mlx.rendering.block_state import BlockState
from nightingale.backends.mlx.rendering.convolutions import take_conv
from nightingale.backends.mlx.weight_files import NetworkWeights
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS, FlowConfig


class EncoderLayer(NamedTuple):
    """An attention layer with relative positions, and a feed-forward layer."""

    norm1: LayerNorm
    qkv: Linear
    distance: Linear
    key_bias: mx.array
    """(heads, 1, head width), added to the queries before the product with keys."""
    distance_bias: mx.array
    out: Linear
    norm2: LayerNorm
    up: Linear
    down: Linear

    def __call__(self, x: mx.array, distances: mx.array, state: BlockState) -> mx.array:
        heads = len(self.key_bias)
        q, k, v = (split_heads(part, heads) for part in mx.split(self.qkv(self.norm1(x)), 3, axis=-1))
        k, v = state.prepend_kv(k), state.prepend_kv(v)
        p = split_heads(self.distance(distances), heads)  # (1, heads, keys + queries - 1, head)
        scale = float(q.shape[-1]) ** -0.5
        by_distance = align_distances((q + self.distance_bias) @ p.swapaxes(2, 3)) * scale
        if (mask := state.mask(q.shape[2], k.shape[2])) is not None:
            by_distance = mx.where(mask, by_distance, -mx.inf)
        out = mx.fast.scaled_dot_product_attention(q + self.key_bias, k, v, scale=scale, mask=by_distance)
        x = x + self.out(join_heads(out))
        y = self.up(self.norm2(x))
        return x + self.down(y * mx.sigmoid(y))


class FlowEncoder:
    """(batch, tokens, width) -> (batch, 2·tokens, width); lookahead tokens give no output."""

    def __init__(self, config: FlowConfig, weights: NetworkWeights) -> None:
        width = config.encoder_width
        self._scale = math.sqrt(width)
        self.embed = self._take_embedding(weights, "encoder.embed", width)
        conv = "encoder.pre_lookahead_layer.conv"
        taps = LOOKAHEAD_TOKENS + 1
        self.conv1 = take_conv(weights, f"{conv}1", width, width, taps, right=LOOKAHEAD_TOKENS)
        self.conv2 = take_conv(weights, f"{conv}2", width, width, 3, left=2)
        self.layers = [_take_layer(config, weights, f"encoders.{n}") for n in range(config.encoder_blocks)]
        self.up = take_conv(weights, "encoder.up_layer.conv", width, width, 5, left=4)
        self.up_embed = self._take_embedding(weights, "encoder.up_embed", width)
        self.up_layers = [
            _take_layer(config, weights, f"up_encoders.{n}") for n in range(config.encoder_up_blocks)
        ]
        self.norm = take_norm(weights, "encoder.after_norm", width)

    def __call__(self, x: mx.array, *, lookahead: int, state: BlockState) -> mx.array:
        linear, norm = self.embed
        x = norm(linear(x)) * self._scale
        tokens = x.shape[1] - lookahead
        if (mask := state.mask(tokens, tokens)) is not None:  # zeros follow the last token
            x = x * mask[:, None].astype(x.dtype)
        y = self.conv1(x)[:, :tokens]
        y = mx.maximum(y, 0.01 * y)
        x = x[:, :tokens] + self.conv2.unpadded(state.prepend_inputs(y, self.conv2.left))
        x = _run(self.layers, x, state)
        x = self.up.unpadded(state.prepend_inputs(mx.repeat(x, 2, axis=1), self.up.left))
        linear, norm = self.up_embed
        return self.norm(_run(self.up_layers, norm(linear(x)) * self._scale, state))

    def _take_embedding(self, weights: NetworkWeights, name: str, width: int) -> tuple[Linear, LayerNorm]:
        return take_linear(weights, f"{name}.out.0", width, width), take_norm(weights, f"{name}.out.1", width)


def _run(layers: list[EncoderLayer], x: mx.array, state: BlockState) -> mx.array:
    distances = distance_encoding(x.shape[1], state.cached_positions + x.shape[1], x.shape[2]).astype(x.dtype)
    for layer in layers:
        x = layer(x, distances, state)
    return x


def _take_layer(config: FlowConfig, weights: NetworkWeights, name: str) -> EncoderLayer:
    name, width, heads = f"encoder.{name}", config.encoder_width, config.encoder_heads
    attention = f"{name}.self_attn"
    parts = [take_linear(weights, f"{attention}.linear_{part}", width, width) for part in "qkv"]
    biases = [part.bias for part in parts if part.bias is not None]
    return EncoderLayer(
        norm1=take_norm(weights, f"{name}.norm_mha", width, 1e-12),
        qkv=Linear(mx.concatenate([part.weight for part in parts]), mx.concatenate(biases)),
        distance=take_linear(weights, f"{attention}.linear_pos", width, width, bias=False),
        key_bias=weights.take(f"{attention}.pos_bias_u", heads, width // heads)[:, None],
        distance_bias=weights.take(f"{attention}.pos_bias_v", heads, width // heads)[:, None],
        out=take_linear(weights, f"{attention}.linear_out", width, width),
        norm2=take_norm(weights, f"{name}.norm_ff", width, 1e-12),
        up=take_linear(weights, f"{name}.feed_forward.w_1", width, config.encoder_ffn),
        down=take_linear(weights, f"{name}.feed_forward.w_2", config.encoder_ffn, width),
    )


def align_distances(scores: mx.array) -> mx.array:
    """Convert scores by distance, farthest first, to scores by key.

    (…, queries, keys + queries - 1) -> (…, queries, keys). Row i must be shifted by i, which is reading the
    padded matrix with rows that are one shorter.
    """
    *batch, queries, spans = scores.shape
    padded = mx.pad(scores, [(0, 0)] * (len(batch) + 1) + [(1, 0)])
    shifted = padded.reshape(*batch, -1)[..., queries:].reshape(*batch, queries, spans)
    return shifted[..., : spans - queries + 1]


def distance_encoding(queries: int, keys: int, width: int) -> mx.array:
    """Return sinusoids of the distances keys-1 … -(queries-1): (1, keys + queries - 1, width)."""
    distance = mx.arange(keys - 1, -queries, -1).astype(mx.float32)
    channel = np.arange(0, width, 2, dtype=np.float32)
    rate = mx.array(np.exp(channel * np.float32(-(math.log(10000.0) / width))))
    angle = distance[:, None] * rate
    return mx.stack([mx.sin(angle), mx.cos(angle)], axis=-1).reshape(1, len(distance), width)
