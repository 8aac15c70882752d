"""A step of a Llama T3 as one graph, from wren's compact weights and without PyTorch.

    for each layer:
        q ‖ k ‖ v = qkv(rms_norm(x));   x += out(attention(rotate(q), rotate(k), v))
        gate ‖ up = gate_up(rms_norm(x));   x += down(silu(gate) · up)
    logits = head(rms_norm(x))          of the positions that are asked for

Inputs and outputs
    x                      (rows, time, width) float32
    seqlens_k              (rows,) int32              position of the last token of each row
    total_sequence_length  (1,) int32                 of the longest row
    logit_positions        (n,) int64                 tokens of the pass whose logits are wanted
    cos, sin               (positions, head_dim / 2)
    keys.N, values.N       (rows, heads, capacity, head_dim); new.keys.N and new.values.N are bound to the
                           same memory, and attention appends to them in place
    logits                 (rows, n, vocab)

In int8 the weights are used as they are stored, with one scale for each output: nothing is quantized again, so
the only error is that of the activations, which the products quantize.
"""

from __future__ import annotations

import numpy as np

from nightingale.backends.onnx.network_graph import NEW, NetworkGraph
from nightingale.backends.onnx.numpy_weights import (
    Floats,
    PackedWeights,
    RowQuantized,
    dequantize,
    quantize_rows,
)
from nightingale.backends.onnx.protobuf import CONTRIB, FLOAT, INT32, INT64
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config

EPSILON = 1e-5


class LlamaStepGraph(NetworkGraph):
    def __init__(self, config: T3Config, weights: PackedWeights, *, int8: bool) -> None:
        super().__init__(weights, int8=int8)
        assert isinstance(config.backbone, LlamaConfig)
        self.heads = config.backbone.heads
        width, head_dim = config.backbone.width, config.backbone.width // self.heads
        self.input("x", FLOAT, ("rows", "time", width))
        self.input("seqlens_k", INT32, ("rows",))
        self.input("total_sequence_length", INT32, (1,))
        self.input("logit_positions", INT64, ("n",))
        for name in ("cos", "sin"):
            self.input(name, FLOAT, ("positions", head_dim // 2))
        for layer in range(config.backbone.layers):
            for name in ("keys", "values"):
                self.input(f"{name}.{layer}", FLOAT, ("rows", self.heads, "capacity", head_dim))
                self.output(f"{NEW}{name}.{layer}", FLOAT, ("rows", self.heads, "capacity", head_dim))
        stream, added = "x", ""
        for layer in range(config.backbone.layers):
            stream, added = self._layer(layer, stream, added, last=layer == config.backbone.layers - 1)
        normed, _ = self._rms_norm("tfmr.norm", stream, added)
        self._product("logits", normed, ["speech_head"], out="logits")
        self.output("logits", FLOAT, ("rows", "n", config.speech_vocab))

    def _layer(self, layer: int, stream: str, added: str, *, last: bool) -> tuple[str, str]:
        """Return the residual stream and what the layer adds to it, which the next norm sums up."""
        at = f"tfmr.layers.{layer}"
        normed, stream = self._rms_norm(f"{at}.input_layernorm", stream, added)
        qkv = self._product(f"{at}.qkv", normed, [f"{at}.self_attn.{part}_proj" for part in "qkv"])
        caches = [f"{name}.{layer}" for name in ("keys", "values")]
        attended = self.node(
            "GroupQueryAttention",
            [qkv, "", "", *caches, "seqlens_k", "total_sequence_length", "cos", "sin"],
            [f"{at}.attended", *(NEW + cache for cache in caches)],
            domain=CONTRIB,
            num_heads=self.heads,
            kv_num_heads=self.heads,
            do_rotary=1,
        )
        if last:  # what follows is computed only where logits are wanted
            stream, attended = (
                self.node("Gather", [x, "logit_positions"], axis=1) for x in (stream, attended)
            )
        added = self._product(f"{at}.out", attended, [f"{at}.self_attn.o_proj"])
        normed, stream = self._rms_norm(f"{at}.post_attention_layernorm", stream, added)
        both = self._product(f"{at}.gate_up", normed, [f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"])
        self.node("Split", [both], [f"{at}.gate", f"{at}.up"], axis=-1, num_outputs=2)
        silu = self.node("QuickGelu", [f"{at}.gate"], domain=CONTRIB, alpha=1.0)
        gated = self.node("Mul", [silu, f"{at}.up"])
        return stream, self._product(f"{at}.down", gated, [f"{at}.mlp.down_proj"])

    def _rms_norm(self, name: str, stream: str, added: str) -> tuple[str, str]:
        """Return the norm of stream + added, and that sum."""
        gain = self.weight(f"{name}.weight")
        normed, total = f"{name}.normed", f"{name}.sum"
        if not added:
            self.node("SimplifiedLayerNormalization", [stream, gain], [normed], epsilon=EPSILON, axis=-1)
            return normed, stream
        outputs = [normed, "", "", total]
        inputs = [stream, added, gain]
        self.node("SkipSimplifiedLayerNormalization", inputs, outputs, domain=CONTRIB, epsilon=EPSILON)
        return normed, total

    def _product(self, name: str, x: str, layers: list[str], *, out: str = "") -> str:
        """Multiply x by the weights (outputs, inputs) of some layers, concatenated along the outputs."""
        parts = [self.packed[f"{layer}.weight"] for layer in layers]
        weight: Floats | RowQuantized
        if self.int8:
            rows = [part if isinstance(part, RowQuantized) else quantize_rows(part) for part in parts]
            codes, scales = (np.concatenate(pair) for pair in zip(*rows, strict=True))
            weight = RowQuantized(codes, scales)
        else:
            weight = np.concatenate([dequantize(part) for part in parts])
        return self.product(x, f"{name}.weight", weight, out or f"{name}.product")
