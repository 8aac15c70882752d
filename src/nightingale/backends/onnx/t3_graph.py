"""A step of T3 as one graph: embeddings in, logits of the next token out, the KV cache updated in place.

    for each layer (Llama; GPT-2 has LayerNorm, biases, and gelu in place of the gate):
        q ‖ k ‖ v = qkv(rms_norm(x));   x += out(attention(rotate(q), rotate(k), v))
        gate ‖ up = gate_up(rms_norm(x));   x += down(silu(gate) · up)
    logits = head(norm(x))          of the positions that are asked for

Inputs and outputs
    x                      (rows, time, width) float32
    seqlens_k              (rows,) int32              position of the last token of each row
    total_sequence_length  (1,) int32                 of the longest row
    logit_positions        (n,) int64                 tokens of the pass whose logits are wanted
    cos, sin               (positions, head_dim / 2)  only with rotary positions
    keys.N, values.N       (rows, heads, capacity, head_dim); new.keys.N and new.values.N are bound to the
                           same memory
    logits                 (rows, n, vocab)
    qkv.N                  (rows, time, 3 · width)    of layers with alignment heads, before positions are applied; an
                                               output that is not bound costs nothing

The attention operator appends new keys and values at each row's own length, so rows of a batch may differ in
length and nothing is copied or concatenated.

In int8, weights of the compact format are used as they are stored, with one scale for each output; others are
quantized with one scale for each block of inputs.
"""

from __future__ import annotations

import numpy as np

from nightingale.backends.onnx.network_graph import NEW, NetworkGraph, TensorFile
from nightingale.backends.onnx.numpy_weights import Floats, PackedWeights, RowQuantized, dequantize
from nightingale.backends.onnx.protobuf import CONTRIB, FLOAT, INT32, INT64
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config

EPSILON = 1e-5
QKV = "qkv."
"""The prefix of the outputs that alignment heads are read from."""


class T3StepGraph(NetworkGraph):
    """The graph of a step."""

    rms_norm = True
    """RMSNorm, as in Llama; otherwise LayerNorm with a bias."""

    def __init__(
        self,
        config: T3Config,
        weights: PackedWeights,
        *,
        int8: bool,
        file: TensorFile | None = None,
    ) -> None:
        """Build the graph; `file` gets the weights, which otherwise are passed to the session."""
        super().__init__(weights, int8=int8, file=file)
        backbone = config.backbone
        self.heads, self.last_layer = backbone.heads, backbone.layers - 1
        self.is_llama = self.rms_norm = isinstance(backbone, LlamaConfig)
        head_dim = backbone.width // backbone.heads
        self.input("x", FLOAT, ("rows", "time", backbone.width))
        self.input("seqlens_k", INT32, ("rows",))
        self.input("total_sequence_length", INT32, (1,))
        self.input("logit_positions", INT64, ("n",))
        for name in ("cos", "sin") if self.is_llama else ():
            self.input(name, FLOAT, ("positions", head_dim // 2))
        for layer in range(backbone.layers):
            for name in (f"keys.{layer}", f"values.{layer}"):
                self.input(name, FLOAT, ("rows", self.heads, "capacity", head_dim))
                self.output(NEW + name, FLOAT, ("rows", self.heads, "capacity", head_dim))
        for layer in sorted({layer for layer, _ in config.traced_heads}):
            self.output(f"{QKV}{layer}", FLOAT, ("rows", "time", 3 * backbone.width))
        # What a layer adds to the residual stream is added by the next norm, which reads the sum anyway.
        stream, added = "x", ""
        for layer in range(backbone.layers):
            stream, added = (self._llama_layer if self.is_llama else self._gpt2_layer)(layer, stream, added)
        last, _ = self.norm("tfmr.norm" if self.is_llama else "tfmr.ln_f", stream, added)
        bias = "speech_head.bias" if config.head_bias else ""
        self.product(last, "logits", self.packed["speech_head.weight"], "logits", bias=bias)
        self.output("logits", FLOAT, ("rows", "n", config.speech_vocab))

    def _llama_layer(self, layer: int, stream: str, added: str) -> tuple[str, str]:
        """Return the residual stream and what the layer adds to it."""
        at = f"tfmr.layers.{layer}"
        normed, stream = self.norm(f"{at}.input_layernorm", stream, added)
        projections = [f"{at}.self_attn.{part}_proj" for part in "qkv"]
        qkv = self.joined(f"{at}.qkv", normed, projections, f"{QKV}{layer}")
        stream, attended = self._attention(layer, stream, qkv)
        added = self.matmul(attended, f"{at}.self_attn.o_proj")
        normed, stream = self.norm(f"{at}.post_attention_layernorm", stream, added)
        return stream, self.gated_mlp(at, normed)

    def _gpt2_layer(self, layer: int, stream: str, added: str) -> tuple[str, str]:
        at = f"tfmr.h.{layer}"
        normed, stream = self.norm(f"{at}.ln_1", stream, added)
        qkv = self._projection(f"{at}.attn.c_attn", normed, f"{QKV}{layer}")
        stream, attended = self._attention(layer, stream, qkv)
        normed, stream = self.norm(f"{at}.ln_2", stream, self._projection(f"{at}.attn.c_proj", attended))
        gelu = self.node("FastGelu", [self._projection(f"{at}.mlp.c_fc", normed)], domain=CONTRIB)
        return stream, self._projection(f"{at}.mlp.c_proj", gelu)

    def _projection(self, name: str, x: str, out: str = "") -> str:
        """Add a layer of GPT-2, whose weights are stored transposed."""
        return self.product(x, name, self.weights[f"{name}.weight"].T, out, bias=f"{name}.bias")

    def _attention(self, layer: int, stream: str, qkv: str) -> tuple[str, str]:
        """Return residual stream and attention, in the last layer only where logits are wanted."""
        caches = [f"{name}.{layer}" for name in ("keys", "values")]
        attended = self.node(
            "GroupQueryAttention",
            [
                qkv,
                "",
                "",
                *caches,
                "seqlens_k",
                "total_sequence_length",
                *["cos", "sin"][: 2 * self.is_llama],
            ],
            [f"attention.{layer}", *(NEW + cache for cache in caches)],
            domain=CONTRIB,
            num_heads=self.heads,
            kv_num_heads=self.heads,
            do_rotary=int(self.is_llama),
        )
        if layer == self.last_layer:
            stream, attended = (
                self.node("Gather", [x, "logit_positions"], axis=1) for x in (stream, attended)
            )
        return stream, attended

    def norm(self, name: str, stream: str, added: str, out: str = "") -> tuple[str, str]:
        """Return the norm of stream + added, and that sum."""
        weights = [self.weight(f"{name}.{part}") for part in ("weight", *([] if self.rms_norm else ["bias"]))]
        op_type = "SimplifiedLayerNormalization" if self.rms_norm else "LayerNormalization"
        normed, total = out or self.unique(f"{name}.normed"), self.unique(f"{name}.sum")
        if not added:
            self.node(op_type, [stream, *weights], [normed], epsilon=EPSILON, axis=-1)
            return normed, stream
        outputs = [normed, "", "", total]
        self.node(f"Skip{op_type}", [stream, added, *weights], outputs, domain=CONTRIB, epsilon=EPSILON)
        return normed, total

    def gated_mlp(self, at: str, x: str) -> str:
        # One product for both projections: threads wait for each other at the end of every product.
        both = self.joined(f"{at}.gate_up", x, [f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"])
        gate, up = self.unique(f"{at}.gate"), self.unique(f"{at}.up")
        self.node("Split", [both], [gate, up], axis=-1, num_outputs=2)
        silu = self.node("QuickGelu", [gate], domain=CONTRIB, alpha=1.0)
        return self.matmul(self.node("Mul", [silu, up]), f"{at}.mlp.down_proj")

    def joined(self, name: str, x: str, layers: list[str], out: str = "") -> str:
        """Multiply x by the weights of some layers, concatenated along the outputs."""
        parts = [self.packed[f"{layer}.weight"] for layer in layers]
        rows = [part for part in parts if isinstance(part, RowQuantized)]
        weight: Floats | RowQuantized
        if self.int8 and len(rows) == len(parts):
            weight = RowQuantized(*(np.concatenate(pair) for pair in zip(*rows, strict=True)))
        else:
            weight = np.concatenate([dequantize(part) for part in parts])
        return self.product(x, name, weight, out)
