"""A step of T3 as one ONNX graph: embeddings in, logits of the next token out, the KV cache updated in place.

Inputs and outputs
    x                      (rows, time, width) float32
    seqlens_k              (rows,) int32              position of the last token of each row
    total_sequence_length  (1,) int32                 of the longest row
    logit_positions        (n,) int64                 tokens of the pass whose logits are wanted
    cos, sin               (positions, head_dim / 2)  only with rotary positions
    keys.N, values.N       (rows, heads, capacity, head_dim); new.keys.N and new.values.N are bound to the
                           same memory
    logits                 (rows, n, vocab)
    hidden_states          (rows, n, (1 + TAPS) · width)   for a draft: what the head reads, and the
                                                             residual stream at some layers before

The attention operator appends new keys and values at each row's own length, so rows of a batch may differ in
length and nothing is copied or concatenated.

Weights are quantized to int8 and lie in a file beside the graph, to be mapped; or they are float32 and lie in
the graph, where ONNX Runtime arranges them for products with a few rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nightingale.backends.onnx.protobuf import CONTRIB, FLOAT, INT32, INT64, UINT8, OnnxGraph
from nightingale.backends.shared.packed_t3 import WEIGHTS, TensorFileWriter, TensorSource
from nightingale.backends.shared.quantize import QuantizedWeight, quantize_weights
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.draft_head import TAPS, tapped_layers

EPSILON = 1e-5
INT8_INPUTS = 4
"""The `accuracy_level` of MatMulNBits that quantizes the inputs to int8 too."""
GRAPH_FILE = "graph.onnx"


class OnnxFormat:
    """Packed weights for ONNX Runtime: a graph, and weights as MatMulNBits reads them."""

    name = "onnx"

    def write(self, config: T3Config, source: TensorSource, file: TensorFileWriter) -> Mapping[str, bytes]:
        return {GRAPH_FILE: T3StepGraph(config, source, int8=True, file=file).build()}


class GraphBuilder(OnnxGraph):
    """The layers that the graphs of T3 and of its draft head are composed of."""

    rms_norm = True
    """RMSNorm, as in Llama; otherwise LayerNorm with a bias."""

    def __init__(self, source: TensorSource, *, int8: bool, file: TensorFileWriter | None = None) -> None:
        """Start a graph with weights from `source`, which are written to `file` or else lie in the graph."""
        super().__init__(WEIGHTS)
        self.source, self.int8, self.file = source, int8, file

    def gated_mlp(self, at: str, x: str) -> str:
        # One product for both projections: threads wait for each other at the end of every product.
        weights = [self.source(f"{at}mlp.{name}_proj.weight") for name in ("gate", "up")]
        both = self.linear(f"{at}gate_up", x, weights)
        self.node("Split", [both], [f"{at}gate", f"{at}up"], axis=-1, num_outputs=2)
        silu = self.node("QuickGelu", [f"{at}gate"], domain=CONTRIB, alpha=1.0)
        gated = self.node("Mul", [silu, f"{at}up"])
        return self.linear(f"{at}down", gated, [self.source(f"{at}mlp.down_proj.weight")])

    def norm(self, name: str, stream: str, added: str, out: str = "") -> tuple[str, str]:
        """Return the norm of stream + added, and that sum."""
        weights = [self._float_weight(f"{name}.weight")]
        if not self.rms_norm:
            weights.append(self._float_weight(f"{name}.bias"))
        op_type = "SimplifiedLayerNormalization" if self.rms_norm else "LayerNormalization"
        normed, total = out or f"{name}.out", f"{name}.sum"
        if not added:
            self.node(op_type, [stream, *weights], [normed], epsilon=EPSILON, axis=-1)
            return normed, stream
        outputs = [normed, "", "", total]
        self.node(f"Skip{op_type}", [stream, added, *weights], outputs, domain=CONTRIB, epsilon=EPSILON)
        return normed, total

    def linear(self, out: str, x: str, weights: list[Tensor], bias: str | None = None) -> str:
        """Multiply x by weights (outputs, inputs), which are concatenated along the outputs."""
        if self.int8:
            return self.int8_linear(out, x, quantize_weights(weights), bias)
        factors = [x, self.weight(f"{out}.weight", FLOAT, torch.cat(weights).float().t())]
        if bias is None:
            return self.node("MatMul", factors, [out])
        return self.node("Add", [self.node("MatMul", factors), self._float_weight(bias)], [out])

    def int8_linear(self, out: str, x: str, weight: QuantizedWeight, bias: str | None = None) -> str:
        outputs, blocks, block = weight.codes.shape
        codes, scales = (
            self.weight(f"{out}.{name}", dtype, value)
            for name, dtype, value in (("codes", UINT8, weight.codes), ("scales", FLOAT, weight.scales))
        )
        inputs = [x, codes, scales, *([] if bias is None else ["", "", self._float_weight(bias)])]
        sizes = {"K": blocks * block, "N": outputs, "bits": 8, "block_size": block}
        return self.node("MatMulNBits", inputs, [out], domain=CONTRIB, **sizes, accuracy_level=INT8_INPUTS)

    def weight(self, name: str, dtype: int, value: Tensor) -> str:
        data = value.contiguous().numpy()
        if self.file is None:
            return self.constant(name, dtype, value.shape, data.tobytes())
        offset = self.file.write(name, data)
        return self.external_constant(name, dtype, value.shape, offset=offset, size=data.nbytes)

    def _float_weight(self, name: str) -> str:
        return self.weight(name, FLOAT, self.source(name).float())


class T3StepGraph(GraphBuilder):
    def __init__(
        self, config: T3Config, source: TensorSource, *, int8: bool, file: TensorFileWriter | None = None
    ) -> None:
        super().__init__(source, int8=int8, file=file)
        self.config = config
        self.is_llama = self.rms_norm = isinstance(config.backbone, LlamaConfig)
        self._streams: list[str] = []
        """The residual stream before each layer."""

    def build(self) -> bytes:
        """Return the model."""
        backbone = self.config.backbone
        head_dim = backbone.width // backbone.heads
        cache = ("rows", backbone.heads, "capacity", head_dim)
        self.input("x", FLOAT, ("rows", "time", backbone.width))
        self.input("seqlens_k", INT32, ("rows",))
        self.input("total_sequence_length", INT32, (1,))
        self.input("logit_positions", INT64, ("n",))
        for name in ("cos", "sin") if self.is_llama else ():
            self.input(name, FLOAT, ("positions", head_dim // 2))
        for layer in range(backbone.layers):
            for name in ("keys", "values"):
                self.input(f"{name}.{layer}", FLOAT, cache)
                self.output(f"new.{name}.{layer}", FLOAT, cache)
        # What a layer adds to the residual stream is added by the next norm, which reads the sum anyway.
        stream, added = "x", ""
        for layer in range(backbone.layers):
            stream, added = (self._llama_layer if self.is_llama else self._gpt2_layer)(layer, stream, added)
        last, _ = self.norm("tfmr.norm" if self.is_llama else "tfmr.ln_f", stream, added)
        streams = self.node(
            "Concat", [self._streams[layer] for layer in tapped_layers(backbone.layers)], axis=-1
        )
        streams = self.node("Gather", [streams, "logit_positions"], axis=1)
        self.node("Concat", [last, streams], ["hidden_states"], axis=-1)
        self.output("hidden_states", FLOAT, ("rows", "n", (1 + TAPS) * backbone.width))
        bias = "speech_head.bias" if self.config.head_bias else None
        self.linear("logits", last, [self.source("speech_head.weight")], bias)
        self.output("logits", FLOAT, ("rows", "n", self.config.speech_vocab))
        return self.model()

    def _llama_layer(self, layer: int, stream: str, added: str) -> tuple[str, str]:
        at = f"tfmr.layers.{layer}."
        normed, stream = self.norm(f"{at}input_layernorm", stream, added)
        qkv = [self.source(f"{at}self_attn.{name}_proj.weight") for name in "qkv"]
        stream, attended = self._attention(layer, stream, self.linear(f"{at}qkv", normed, qkv))
        added = self.linear(f"{at}out", attended, [self.source(f"{at}self_attn.o_proj.weight")])
        normed, stream = self.norm(f"{at}post_attention_layernorm", stream, added)
        return stream, self.gated_mlp(at, normed)

    def _gpt2_layer(self, layer: int, stream: str, added: str) -> tuple[str, str]:
        at = f"tfmr.h.{layer}."
        normed, stream = self.norm(f"{at}ln_1", stream, added)
        stream, attended = self._attention(layer, stream, self._projection(f"{at}attn.c_attn", normed))
        normed, stream = self.norm(f"{at}ln_2", stream, self._projection(f"{at}attn.c_proj", attended))
        gelu = self.node("FastGelu", [self._projection(f"{at}mlp.c_fc", normed)], domain=CONTRIB)
        return stream, self._projection(f"{at}mlp.c_proj", gelu)

    def _projection(self, name: str, x: str) -> str:
        """Add a layer of GPT-2, whose weights are stored transposed."""
        return self.linear(name, x, [self.source(f"{name}.weight").t()], f"{name}.bias")

    def _attention(self, layer: int, stream: str, qkv: str) -> tuple[str, str]:
        """Return residual stream and attention, in the last layer only where logits are wanted."""
        heads = self.config.backbone.heads
        self._streams.append(stream)
        lengths, tables = ["seqlens_k", "total_sequence_length"], ["cos", "sin"] if self.is_llama else []
        attended = self.node(
            "GroupQueryAttention",
            [qkv, "", "", f"keys.{layer}", f"values.{layer}", *lengths, *tables],
            [f"attention.{layer}", f"new.keys.{layer}", f"new.values.{layer}"],
            domain=CONTRIB,
            num_heads=heads,
            kv_num_heads=heads,
            do_rotary=int(self.is_llama),
        )
        if layer < self.config.backbone.layers - 1:
            return stream, attended
        stream, attended = (self.node("Gather", [x, "logit_positions"], axis=1) for x in (stream, attended))
        return stream, attended
