"""The layers of T3 on MLX, Llama and GPT-2, over KV caches of fixed size.

A KV cache belongs to one utterance: for each layer keys and values (rows, heads, capacity, head width), two rows
where the utterance is guided. A step writes one position of it; MLX does that in place, because the old array
has no other user. Products of all utterances' rows are one; attention is computed for each utterance, so its cost
is that of its own length, and moving an utterance to another slot copies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from nightingale.backends.mlx.arrays import (
    DTYPES,
    LayerNorm,
    Linear,
    join_heads,
    split_heads,
    take_linear,
    take_norm,
)
from nightingale.backends.mlx.capabilities import group_size_for
from nightingale.backends.mlx.t3.prepared_layers import PreparedLayers
from nightingale.backends.mlx.weight_files import NetworkWeights
from nightingale.models.chatterbox.t3.config import Gpt2Config, LlamaConfig

ROPE_FACTOR, ROPE_LOW, ROPE_HIGH, ROPE_CONTEXT = 8.0, 1.0, 4.0, 8192
"""Llama 3's frequency scaling (models/layers/rope.py)."""
BITS = {"int8": 8, "int4": 4}
RESIDUAL_BITS = 6
"""Bits of the layers that write to the residual stream, where the others have four: the error of wren's logits is
then about a fifth lower than if all have four."""

KVCaches = list[tuple[mx.array, mx.array]]
"""Keys and values of each layer, of one utterance."""


class Precision(NamedTuple):
    """The types that T3 computes with."""

    dtype: mx.Dtype
    bits: int = 0
    """Bits of the layers' weights; 0 if they are of `dtype`."""
    prepared: PreparedLayers | None = None
    """Quantized layers on disk."""

    @classmethod
    def named(cls, name: str, *, gpu: bool) -> Precision:
        """Return a precision by its name. Quantized weights have float16 activations on a GPU."""
        if name in BITS:
            return cls(mx.float16 if gpu else mx.float32, BITS[name])
        return cls(DTYPES[name])

    def layer(self, linear: Linear, *, residual: bool = False) -> Linear:
        """Return a layer in this precision. residual: its output is added to the residual stream."""
        linear = linear.cast(self.dtype)
        if not self.bits:
            return linear
        bits = RESIDUAL_BITS if residual and self.bits == 4 else self.bits
        quantized = linear.quantized(bits, group_size_for(linear.weight.shape[1], bits))
        return quantized if self.prepared is None else self.prepared.layer(quantized)

    def norm(self, norm: LayerNorm) -> LayerNorm:
        return LayerNorm(norm.weight.astype(self.dtype), norm.bias.astype(self.dtype), norm.eps)


class RootMeanSquareNorm(NamedTuple):
    weight: mx.array

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self.weight, 1e-5)


class TransformerLayer(NamedTuple):
    """One layer: both norms, the joined projections to queries, keys and values, and the MLP.

    Llama's gate and up projections are joined too; `gated` tells the two MLPs apart.
    """

    norm1: RootMeanSquareNorm | LayerNorm
    qkv: Linear
    out: Linear
    norm2: RootMeanSquareNorm | LayerNorm
    up: Linear
    down: Linear
    gated: bool

    def mlp(self, x: mx.array) -> mx.array:
        y = self.up(self.norm2(x))
        if self.gated:
            gate, up = mx.split(y, 2, axis=-1)
            return self.down(gate * mx.sigmoid(gate) * up)
        inner = math.sqrt(2 / math.pi) * (y + 0.044715 * y * y * y)
        return self.down(0.5 * y * (1 + mx.tanh(inner)))


class Transformer:
    """T3's backbone: (rows, time, width) embeddings -> normed hidden states."""

    def __init__(
        self, config: LlamaConfig | Gpt2Config, weights: NetworkWeights, precision: Precision
    ) -> None:
        self.heads, self.head_width = config.heads, config.width // config.heads
        self.dtype = precision.dtype
        self._scale = self.head_width**-0.5
        self.positions: mx.array | None = None
        """GPT-2's position embeddings (positions, width)."""
        self._wavelengths: mx.array | None = None
        """The positions per radian of each channel pair of Llama."""
        if isinstance(config, LlamaConfig):
            self._wavelengths = 1 / mx.array(inverse_frequencies(self.head_width, config))
            self.layers = [llama_layer(config, weights, n, precision) for n in range(config.layers)]
            self.norm: RootMeanSquareNorm | LayerNorm = take_rms_norm(
                weights, "tfmr.norm", config.width, precision
            )
        else:
            table = weights.take("tfmr.wpe.weight", config.positions, config.width)
            self.positions = table.astype(self.dtype)
            self.layers = [gpt2_layer(config, weights, n, precision) for n in range(config.layers)]
            self.norm = precision.norm(take_norm(weights, "tfmr.ln_f", config.width))

    def new_caches(self, rows: int, capacity: int) -> KVCaches:
        shape = rows, self.heads, capacity, self.head_width
        return [(mx.zeros(shape, self.dtype), mx.zeros(shape, self.dtype)) for _ in self.layers]

    def read(self, x: mx.array, caches: KVCaches) -> tuple[mx.array, KVCaches]:
        """Read a prompt (rows, time, width) into empty caches; return its hidden states and the caches."""
        if self.positions is not None:
            x = x + self.positions[: x.shape[1]]
        start, updated = mx.array([0]), list[tuple[mx.array, mx.array]]()
        for layer, (keys, values) in zip(self.layers, caches, strict=True):
            q, k, v = self._project(layer, x, mx.zeros((len(x),), mx.int32))
            updated.append((_write(keys, k, start), _write(values, v, start)))
            out = mx.fast.scaled_dot_product_attention(q, k, v, scale=self._scale, mask="causal")
            x = x + layer.out(join_heads(out))
            x = x + layer.mlp(x)
        return self.norm(x), updated

    def queries_and_keys(self, x: mx.array, layers: int) -> list[tuple[mx.array, mx.array]]:
        """Return queries and keys (rows, heads, time, head width) of the first layers, for a whole sequence."""
        if self.positions is not None:
            x = x + self.positions[: x.shape[1]]
        found: list[tuple[mx.array, mx.array]] = []
        for layer in self.layers[:layers]:
            q, k, v = self._project(layer, x, mx.zeros((len(x),), mx.int32))
            found.append((q, k))
            out = mx.fast.scaled_dot_product_attention(q, k, v, scale=self._scale, mask="causal")
            x = x + layer.out(join_heads(out))
            x = x + layer.mlp(x)
        return found

    def step(
        self, x: mx.array, lengths: mx.array, slots: Sequence[KVCaches], span: int
    ) -> tuple[mx.array, list[KVCaches]]:
        """Append one token of each slot; return the hidden states (rows, width) and the caches.

        x (rows, width) has the rows of all slots, in order; lengths (slots,) are their cached positions, all less
        than `span`, which is how much of a cache is attended to.
        """
        counts = [len(caches[0][0]) for caches in slots]
        row_slots = mx.array([slot for slot, count in enumerate(counts) for _ in range(count)])
        row_lengths = lengths[row_slots]
        if self.positions is not None:
            x = x + self.positions[row_lengths]
        x = x[:, None]
        ends = np.cumsum(counts).tolist()
        spans = [min(span, caches[0][0].shape[2]) for caches in slots]
        masks = [mx.arange(own) <= lengths[slot] for slot, own in enumerate(spans)]
        updated: list[KVCaches] = [[] for _ in slots]
        for number, layer in enumerate(self.layers):
            q, k, v = self._project(layer, x, row_lengths)
            outs = []
            for slot, (end, count, mask, span) in enumerate(zip(ends, counts, masks, spans, strict=True)):
                own, at = slice(end - count, end), lengths[slot : slot + 1]
                keys, values = slots[slot][number]
                keys, values = _write(keys, k[own], at), _write(values, v[own], at)
                updated[slot].append((keys, values))
                outs.append(
                    mx.fast.scaled_dot_product_attention(
                        q[own], keys[:, :, :span], values[:, :, :span], scale=self._scale, mask=mask
                    )
                )
            out = outs[0] if len(outs) == 1 else mx.concatenate(outs)
            x = x + layer.out(join_heads(out))
            x = x + layer.mlp(x)
        return self.norm(x)[:, 0], updated

    def _project(self, layer: TransformerLayer, x: mx.array, at: mx.array) -> list[mx.array]:
        """Return queries, keys and values (rows, heads, time, head width); at (rows,) is the first position."""
        q, k, v = (split_heads(part, self.heads) for part in mx.split(layer.qkv(layer.norm1(x)), 3, axis=-1))
        return [self._rotate(q, at), self._rotate(k, at), v]

    def _rotate(self, x: mx.array, at: mx.array) -> mx.array:
        if self._wavelengths is None:
            return x
        return mx.fast.rope(
            x,
            self.head_width,
            traditional=False,
            base=None,
            scale=1.0,
            offset=at,
            freqs=self._wavelengths,
        )


def _write(cache: mx.array, fresh: mx.array, at: mx.array) -> mx.array:
    """Return a cache with keys or values written from position `at` (1,) on: in place if it has no other user."""
    return mx.slice_update(cache, fresh, at, axes=(2,))


def inverse_frequencies(width: int, config: LlamaConfig) -> np.ndarray:
    """Return the radians per position of each channel pair, as models/layers/rope.py does."""
    plain = 1 / config.rope_theta ** (np.arange(0, width, 2, dtype=np.float32) / width)
    if not config.rope_scaling:
        return plain.astype(np.float32)
    turns = ROPE_CONTEXT * plain / (2 * math.pi)
    blend = np.clip((turns - ROPE_LOW) / (ROPE_HIGH - ROPE_LOW), 0, 1)
    return ((1 - blend) * plain / ROPE_FACTOR + blend * plain).astype(np.float32)


def take_rms_norm(weights: NetworkWeights, name: str, width: int, precision: Precision) -> RootMeanSquareNorm:
    return RootMeanSquareNorm(weights.take(f"{name}.weight", width).astype(precision.dtype))


def llama_layer(
    config: LlamaConfig, weights: NetworkWeights, number: int, precision: Precision
) -> TransformerLayer:
    name, width, ffn = f"tfmr.layers.{number}", config.width, config.ffn

    def joined(*parts: str, outputs: int) -> Linear:
        taken = [weights.take(f"{name}.{part}.weight", outputs, width) for part in parts]
        return precision.layer(Linear(mx.concatenate(taken)))

    o_proj = take_linear(weights, f"{name}.self_attn.o_proj", width, width, bias=False)
    down = take_linear(weights, f"{name}.mlp.down_proj", ffn, width, bias=False)
    return TransformerLayer(
        norm1=take_rms_norm(weights, f"{name}.input_layernorm", width, precision),
        qkv=joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", outputs=width),
        out=precision.layer(o_proj, residual=True),
        norm2=take_rms_norm(weights, f"{name}.post_attention_layernorm", width, precision),
        up=joined("mlp.gate_proj", "mlp.up_proj", outputs=ffn),
        down=precision.layer(down, residual=True),
        gated=True,
    )


def gpt2_layer(
    config: Gpt2Config, weights: NetworkWeights, number: int, precision: Precision
) -> TransformerLayer:
    name, width = f"tfmr.h.{number}", config.width

    def linear(part: str, inputs: int, outputs: int, *, residual: bool = False) -> Linear:
        """Take a layer whose weight GPT-2's checkpoints store as (inputs, outputs)."""
        weight = mx.contiguous(weights.take(f"{name}.{part}.weight", inputs, outputs).T)
        bias = weights.take(f"{name}.{part}.bias", outputs)
        return precision.layer(Linear(weight, bias), residual=residual)

    return TransformerLayer(
        norm1=precision.norm(take_norm(weights, f"{name}.ln_1", width)),
        qkv=linear("attn.c_attn", width, 3 * width),
        out=linear("attn.c_proj", width, width, residual=True),
        norm2=precision.norm(take_norm(weights, f"{name}.ln_2", width)),
        up=linear("mlp.c_fc", width, 4 * width),
        down=linear("mlp.c_proj", 4 * width, width, residual=True),
        gated=False,
    )
