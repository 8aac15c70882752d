"""A step of T3 as one graph: embeddings in, scores of the next token out, attention over the cache in place.

The cache of a layer is an input and an output bound to the same memory: (rows, heads, capacity, head width).
The attention operator appends each row's new keys and values at that row's own length, so rows of a batch may
have come differently far, and nothing is copied or concatenated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from nightingale.accel.cpu.onnx_file import CONTRIB, FLOAT, INT32, INT64, UINT8, Graph
from nightingale.accel.cpu.rounding import round_weight
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config

Source = Callable[[str], Tensor]
"""A weight of T3 by its name."""
EPSILON = 1e-5
ALIGNMENT = 4096
"""Of large weights in their file, so that they can be mapped."""
INT8_INPUTS = 4
"""The operator's word for: round the inputs of a product to eight bits too."""


class StepGraph:
    """Writes the graph of one T3, and its weights into a file as they are rounded, one layer at a time."""

    def __init__(self, config: T3Config, source: Source, weights: BinaryIO, weights_file: str) -> None:
        self.config, self.source, self.file = config, source, weights
        self.graph = Graph(weights_file)
        self.rotary = isinstance(config.backbone, LlamaConfig)

    def write(self) -> bytes:
        """The graph, ready to be written beside its weights."""
        backbone, g = self.config.backbone, self.graph
        head_width = backbone.width // backbone.heads
        cache = ("rows", backbone.heads, "capacity", head_width)
        g.input("x", FLOAT, ("rows", "time", backbone.width))
        g.input("last", INT32, ("rows",))
        g.input("total", INT32, (1,))
        if self.rotary:
            g.input("cos", FLOAT, ("positions", head_width // 2))
            g.input("sin", FLOAT, ("positions", head_width // 2))
        for layer in range(backbone.layers):
            for name in ("keys", "values"):
                g.input(f"{name}.{layer}", FLOAT, cache)
                g.output(f"new.{name}.{layer}", FLOAT, cache)
        g.small("minus_one", INT64, (1,), np.array([-1], np.int64).tobytes())
        # What a layer adds to the stream is added by the next norm, which reads the sum anyway.
        stream, added = "x", ""
        for layer in range(backbone.layers):
            stream, added = self._layer(layer, stream, added)
        normed, _ = self._norm("tfmr.norm" if self.rotary else "tfmr.ln_f", stream, added)
        bias = "speech_head.bias" if self.config.head_bias else None
        self._linear("scores3", normed, [self.source("speech_head.weight")], bias)
        g.small("time_axis", INT64, (1,), np.array([1], np.int64).tobytes())
        g.node("Squeeze", ["scores3", "time_axis"], ["scores"])
        g.output("scores", FLOAT, ("rows", self.config.speech_vocab))
        return g.model()

    def _layer(self, layer: int, stream: str, added: str) -> tuple[str, str]:
        g, last = self.graph, layer == self.config.backbone.layers - 1
        at = f"tfmr.layers.{layer}." if self.rotary else f"tfmr.h.{layer}."
        normed, stream = self._norm(at + ("input_layernorm" if self.rotary else "ln_1"), stream, added)
        if self.rotary:
            qkv = [self.source(f"{at}self_attn.{name}_proj.weight") for name in "qkv"]
            self._linear(f"{at}qkv", normed, qkv, None)
        else:
            self._linear(
                f"{at}qkv", normed, [self.source(f"{at}attn.c_attn.weight").t()], f"{at}attn.c_attn.bias"
            )
        heard = self._attend(layer, f"{at}qkv")
        if last:  # of the last layer's answers only the newest is asked for
            heard = g.node("Gather", [heard, "minus_one"], ["newest"], attributes={"axis": 1})
            stream = g.node("Gather", [stream, "minus_one"], ["newest_stream"], attributes={"axis": 1})
        if self.rotary:
            self._linear(f"{at}out", heard, [self.source(f"{at}self_attn.o_proj.weight")], None)
            normed, stream = self._norm(at + "post_attention_layernorm", stream, f"{at}out")
            return stream, self._gated(at, normed)
        self._linear(f"{at}out", heard, [self.source(f"{at}attn.c_proj.weight").t()], f"{at}attn.c_proj.bias")
        normed, stream = self._norm(at + "ln_2", stream, f"{at}out")
        self._linear(f"{at}fc", normed, [self.source(f"{at}mlp.c_fc.weight").t()], f"{at}mlp.c_fc.bias")
        g.node("FastGelu", [f"{at}fc"], [f"{at}gelu"], domain=CONTRIB)
        return stream, self._linear(
            f"{at}down", f"{at}gelu", [self.source(f"{at}mlp.c_proj.weight").t()], f"{at}mlp.c_proj.bias"
        )

    def _gated(self, at: str, normed: str) -> str:
        g = self.graph
        # One product for both: a thread that waits for the other at the end of a product waits once less.
        both = [self.source(f"{at}mlp.{name}_proj.weight") for name in ("gate", "up")]
        self._linear(f"{at}both", normed, both, None)
        halves = {"axis": -1, "num_outputs": 2}
        g.node("Split", [f"{at}both"], [f"{at}gate", f"{at}up"], attributes=halves)
        g.node("QuickGelu", [f"{at}gate"], [f"{at}silu"], domain=CONTRIB, attributes={"alpha": 1.0})
        g.node("Mul", [f"{at}silu", f"{at}up"], [f"{at}gated"])
        return self._linear(f"{at}down", f"{at}gated", [self.source(f"{at}mlp.down_proj.weight")], None)

    def _attend(self, layer: int, qkv: str) -> str:
        heads = self.config.backbone.heads
        turn = ["cos", "sin"] if self.rotary else []
        return self.graph.node(
            "GroupQueryAttention",
            [qkv, "", "", f"keys.{layer}", f"values.{layer}", "last", "total", *turn],
            [f"heard.{layer}", f"new.keys.{layer}", f"new.values.{layer}"],
            domain=CONTRIB,
            attributes={"num_heads": heads, "kv_num_heads": heads, "do_rotary": int(self.rotary)},
        )

    def _norm(self, name: str, stream: str, added: str) -> tuple[str, str]:
        """The norm of stream + added, and that sum."""
        facts = [self._small(f"{name}.weight")]
        if not self.rotary:
            facts.append(self._small(f"{name}.bias"))
        kind = "SimplifiedLayerNormalization" if self.rotary else "LayerNormalization"
        normed, total = f"{name}.out", f"{name}.sum"
        if not added:
            self.graph.node(kind, [stream, *facts], [normed], attributes={"epsilon": EPSILON, "axis": -1})
            return normed, stream
        self.graph.node(
            f"Skip{kind}",
            [stream, added, *facts],
            [normed, "", "", total],
            domain=CONTRIB,
            attributes={"epsilon": EPSILON},
        )
        return normed, total

    def _linear(self, out: str, x: str, weights: list[Tensor], bias: str | None) -> str:
        """x times the weights, each (outputs, inputs), one below another."""
        parts = [round_weight(weight) for weight in weights]
        codes = torch.cat([part.codes for part in parts])
        scales = torch.cat([part.scales for part in parts])
        outputs, blocks, block = codes.shape
        given = [x, self._large(f"{out}.codes", UINT8, codes), self._large(f"{out}.scales", FLOAT, scales)]
        if bias is not None:
            given += ["", "", self._small(bias)]
        return self.graph.node(
            "MatMulNBits",
            given,
            [out],
            domain=CONTRIB,
            attributes={
                "K": blocks * block,
                "N": outputs,
                "bits": 8,
                "block_size": block,
                "accuracy_level": INT8_INPUTS,
            },
        )

    def _large(self, name: str, kind: int, value: Tensor) -> str:
        self.file.write(b"\0" * (-self.file.tell() % ALIGNMENT))
        offset, data = self.file.tell(), value.contiguous().numpy()
        self.file.write(data.data)
        return self.graph.weight(name, kind, value.shape, offset=offset, size=data.nbytes)

    def _small(self, name: str) -> str:
        value = self.source(name).float().contiguous()
        return self.graph.small(name, FLOAT, value.shape, value.numpy().tobytes())
