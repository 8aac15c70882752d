"""A step of T3 as one graph: embeddings in, scores of the next token out, attention over the cache in place.

The cache of a layer is an input and an output bound to the same memory: (rows, heads, capacity, head width).
The attention operator appends each row's new keys and values at that row's own length, so rows of a batch may
have come differently far, and nothing is copied or concatenated. Of the tokens of a pass only those are
scored that are asked for: the last of a prompt, all of a guess.

Weights are rounded to eight bits and lie in a file beside the graph, to be mapped; or they stay as they are
and lie in the graph itself, to be laid out by the runtime for products with a few rows.
"""

from __future__ import annotations

from typing import BinaryIO

import torch
from torch import Tensor

from nightingale.backends.onnx.protobuf import CONTRIB, FLOAT, INT32, INT64, UINT8, Graph
from nightingale.backends.shared.tensor_file import Place, Source, WeightFile
from nightingale.backends.shared.quantize import round_weight
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.draft_head import TAPS, tapped_layers

EPSILON = 1e-5
INT8_INPUTS = 4
"""The operator's word for: round the inputs of a product to eight bits too."""


class Writer:
    """What the graphs of T3 and of its guesses are made of."""

    root_mean_square = True
    """Whether norms are, as Llama's; otherwise they also take the mean away, and have a bias."""

    def __init__(
        self, source: Source, *, rounded: bool, file: BinaryIO | None = None, file_name: str = ""
    ) -> None:
        """rounded: whether weights and inputs of products are of eight bits. file: where weights are written,
        one layer at a time, under that name; without it they lie in the graph."""
        self.source, self.rounded = source, rounded
        self.file = None if file is None else WeightFile(file)
        self.graph = Graph(file_name)

    @property
    def places(self) -> dict[str, Place]:
        """Of weights in the file."""
        return {} if self.file is None else self.file.places

    def gated(self, at: str, normed: str) -> str:
        g = self.graph
        # One product for both: a thread that waits for the other at the end of a product waits once less.
        both = [self.source(f"{at}mlp.{name}_proj.weight") for name in ("gate", "up")]
        self.linear(f"{at}both", normed, both, None)
        halves = {"axis": -1, "num_outputs": 2}
        g.node("Split", [f"{at}both"], [f"{at}gate", f"{at}up"], attributes=halves)
        g.node("QuickGelu", [f"{at}gate"], [f"{at}silu"], domain=CONTRIB, attributes={"alpha": 1.0})
        g.node("Mul", [f"{at}silu", f"{at}up"], [f"{at}gated"])
        return self.linear(f"{at}down", f"{at}gated", [self.source(f"{at}mlp.down_proj.weight")], None)

    def norm(self, name: str, stream: str, added: str, out: str = "") -> tuple[str, str]:
        """The norm of stream + added, and that sum."""
        facts = [self._given(f"{name}.weight")]
        if not self.root_mean_square:
            facts.append(self._given(f"{name}.bias"))
        kind = "SimplifiedLayerNormalization" if self.root_mean_square else "LayerNormalization"
        normed, total = out or f"{name}.out", f"{name}.sum"
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

    def linear(self, out: str, x: str, weights: list[Tensor], bias: str | None) -> str:
        """x times the weights, each (outputs, inputs), one below another."""
        if not self.rounded:
            turned = torch.cat(weights).float().t()
            product = [x, self._weight(f"{out}.weight", FLOAT, turned)]
            if bias is None:
                return self.graph.node("MatMul", product, [out])
            self.graph.node("MatMul", product, [f"{out}.product"])
            return self.graph.node("Add", [f"{out}.product", self._given(bias)], [out])
        parts = [round_weight(weight) for weight in weights]
        codes = torch.cat([part.codes for part in parts])
        scales = torch.cat([part.scales for part in parts])
        outputs, blocks, block = codes.shape
        given = [x, self._weight(f"{out}.codes", UINT8, codes), self._weight(f"{out}.scales", FLOAT, scales)]
        if bias is not None:
            given += ["", "", self._given(bias)]
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

    def _weight(self, name: str, kind: int, value: Tensor) -> str:
        data = value.contiguous().numpy()
        if self.file is None:
            return self.graph.small(name, kind, value.shape, data.tobytes())
        place = self.file.write(name, data)
        return self.graph.weight(name, kind, value.shape, offset=place.offset, size=data.nbytes)

    def _given(self, name: str) -> str:
        return self._weight(name, FLOAT, self.source(name).float())


class StepGraph(Writer):
    """The graph of one T3."""

    def __init__(
        self,
        config: T3Config,
        source: Source,
        *,
        rounded: bool,
        file: BinaryIO | None = None,
        file_name: str = "",
    ) -> None:
        super().__init__(source, rounded=rounded, file=file, file_name=file_name)
        self.config = config
        self.rotary = self.root_mean_square = isinstance(config.backbone, LlamaConfig)
        self._streams: list[str] = []
        """Before each layer."""

    def write(self) -> bytes:
        """The graph, ready to be written beside its weights."""
        backbone, g = self.config.backbone, self.graph
        head_width = backbone.width // backbone.heads
        cache = ("rows", backbone.heads, "capacity", head_width)
        g.input("x", FLOAT, ("rows", "time", backbone.width))
        g.input("last", INT32, ("rows",))
        g.input("total", INT32, (1,))
        g.input("asked", INT64, ("asked",))
        if self.rotary:
            g.input("cos", FLOAT, ("positions", head_width // 2))
            g.input("sin", FLOAT, ("positions", head_width // 2))
        for layer in range(backbone.layers):
            for name in ("keys", "values"):
                g.input(f"{name}.{layer}", FLOAT, cache)
                g.output(f"new.{name}.{layer}", FLOAT, cache)
        # What a layer adds to the stream is added by the next norm, which reads the sum anyway.
        stream, added = "x", ""
        for layer in range(backbone.layers):
            stream, added = self._layer(layer, stream, added)
        thought, _ = self.norm("tfmr.norm" if self.rotary else "tfmr.ln_f", stream, added)
        # For a draft: models/chatterbox/t3/draft_head.py.
        halves = [self._streams[place] for place in tapped_layers(backbone.layers)]
        g.node("Concat", halves, ["all_halves"], attributes={"axis": -1})
        g.node("Gather", ["all_halves", "asked"], ["halves"], attributes={"axis": 1})
        g.node("Concat", [thought, "halves"], ["thoughts"], attributes={"axis": -1})
        g.output("thoughts", FLOAT, ("rows", "asked", (1 + TAPS) * backbone.width))
        bias = "speech_head.bias" if self.config.head_bias else None
        self.linear("scores", thought, [self.source("speech_head.weight")], bias)
        g.output("scores", FLOAT, ("rows", "asked", self.config.speech_vocab))
        return g.model()

    def _layer(self, layer: int, stream: str, added: str) -> tuple[str, str]:
        g, last = self.graph, layer == self.config.backbone.layers - 1
        at = f"tfmr.layers.{layer}." if self.rotary else f"tfmr.h.{layer}."
        normed, stream = self.norm(at + ("input_layernorm" if self.rotary else "ln_1"), stream, added)
        self._streams.append(stream)
        if self.rotary:
            qkv = [self.source(f"{at}self_attn.{name}_proj.weight") for name in "qkv"]
            self.linear(f"{at}qkv", normed, qkv, None)
        else:
            self.linear(
                f"{at}qkv", normed, [self.source(f"{at}attn.c_attn.weight").t()], f"{at}attn.c_attn.bias"
            )
        heard = self._attend(layer, f"{at}qkv")
        if last:
            heard = g.node("Gather", [heard, "asked"], ["asked_heard"], attributes={"axis": 1})
            stream = g.node("Gather", [stream, "asked"], ["asked_stream"], attributes={"axis": 1})
        if self.rotary:
            self.linear(f"{at}out", heard, [self.source(f"{at}self_attn.o_proj.weight")], None)
            normed, stream = self.norm(at + "post_attention_layernorm", stream, f"{at}out")
            return stream, self.gated(at, normed)
        self.linear(f"{at}out", heard, [self.source(f"{at}attn.c_proj.weight").t()], f"{at}attn.c_proj.bias")
        normed, stream = self.norm(at + "ln_2", stream, f"{at}out")
        self.linear(f"{at}fc", normed, [self.source(f"{at}mlp.c_fc.weight").t()], f"{at}mlp.c_fc.bias")
        g.node("FastGelu", [f"{at}fc"], [f"{at}gelu"], domain=CONTRIB)
        return stream, self.linear(
            f"{at}down", f"{at}gelu", [self.source(f"{at}mlp.c_proj.weight").t()], f"{at}mlp.c_proj.bias"
        )

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
