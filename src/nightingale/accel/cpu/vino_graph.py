"""A step of T3 as one OpenVINO graph over packed weights: the same step as graph.py writes for ONNX Runtime.

Tokens of all rows lie one after another, each row with as many as it likes, so nothing is padded. The cache
of a layer lies in blocks of positions; the attention operator appends each row's new keys and values to that
row's blocks, and reads them where they lie.

That operator is `PagedAttentionExtension`, which OpenVINO has for servers of its own and calls private: its
inputs become more from version to version. able.py tries it out before anyone relies on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightingale.accel.cpu.graph import EPSILON
from nightingale.accel.cpu.rounding import ZERO
from nightingale.models.chatterbox.t3.config import LlamaConfig, T3Config

Node = Any
"""Of OpenVINO, which has no types of its own."""
PER_STEP = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
"""What the operator must know of the rows of a step: how many positions each has behind it, where its tokens
begin, the blocks of all, and where its own begin among these."""

SHARED = 4096
"""Bytes of an array that is not worth a copy."""


class VinoGraph:
    def __init__(self, config: T3Config, weights: Mapping[str, NDArray[Any]]) -> None:
        """weights: of `Packed.weights`; read where they lie, by the first pass of the compiled model."""
        import openvino
        from openvino import opset13

        self.config, self.weights, self.rotary = config, weights, isinstance(config.backbone, LlamaConfig)
        self.ov, self.op = openvino, opset13
        self.inputs: list[Node] = []

    def model(self) -> Any:
        """Takes x (tokens, width), cos and sin (tokens, 1, 1, head width) where T3 turns heads, the facts of
        `PER_STEP`, and `asked`, the tokens to be scored; gives scores (asked, vocab)."""
        op, backbone = self.op, self.config.backbone
        x = self._input("x", (-1, backbone.width))
        turn = [self._input(name, (-1, 1, 1, self.head_width)) for name in ("cos", "sin") if self.rotary]
        step = [self._input(name, (-1,), "i32") for name in PER_STEP]
        longest, self.asked = self._input("max_context_len", (), "i32"), self._input("asked", (-1,), "i64")
        stream = x
        for layer in range(backbone.layers):
            stream = self._layer(layer, stream, turn, [*step, longest])
        thought = self._norm("tfmr.norm" if self.rotary else "tfmr.ln_f", stream)
        bias = "speech_head.bias" if self.config.head_bias else None
        scores = op.result(self._linear("scores", thought, bias).output(0))
        return self.ov.Model([scores], self.inputs, "t3")

    @property
    def head_width(self) -> int:
        return self.config.backbone.width // self.config.backbone.heads

    def _layer(self, layer: int, stream: Node, turn: Sequence[Node], step: Sequence[Node]) -> Node:
        op, last = self.op, layer == self.config.backbone.layers - 1
        at = f"tfmr.layers.{layer}." if self.rotary else f"tfmr.h.{layer}."
        normed = self._norm(at + ("input_layernorm" if self.rotary else "ln_1"), stream)
        bias = None if self.rotary else f"{at}attn.c_attn.bias"
        queries, keys, values = self._parts(self._linear(f"{at}qkv", normed, bias), 3)
        if turn:
            queries, keys = (self._turned(heads, *turn) for heads in (queries, keys))
        heard = self._attend(layer, queries, keys, values, step)
        if last:
            heard, stream = (
                op.gather(value, self.asked, self._const(np.int64(0))) for value in (heard, stream)
            )
        bias = None if self.rotary else f"{at}attn.c_proj.bias"
        stream = op.add(stream, self._linear(f"{at}out", heard, bias))
        normed = self._norm(at + ("post_attention_layernorm" if self.rotary else "ln_2"), stream)
        if self.rotary:
            gate, up = self._parts(self._linear(f"{at}both", normed), 2)
            return op.add(stream, self._linear(f"{at}down", op.multiply(op.swish(gate), up)))
        inner = op.gelu(self._linear(f"{at}fc", normed, f"{at}mlp.c_fc.bias"), "tanh")
        return op.add(stream, self._linear(f"{at}down", inner, f"{at}mlp.c_proj.bias"))

    def _attend(self, layer: int, queries: Node, keys: Node, values: Node, step: Sequence[Node]) -> Node:
        from openvino.op import _PagedAttentionExtension

        heads, width = self.config.backbone.heads, self.head_width
        cache = [
            self._input(f"{name}.{layer}", (-1, heads, -1, -1), "dynamic")
            for name in ("key_cache", "value_cache")
        ]
        *rows, longest = step

        def none(kind: type[Any]) -> Node:
            return self._const(np.zeros(0, kind))

        nothing, zero = none(np.int32), self._const(np.int32(0))
        scale, slopes = self._const(np.float32(width**-0.5)), none(np.float32)
        # What follows is for what T3 does not do: windows, scores told, keys turned in the cache, sparse
        # attention, sinks, eviction, and tokens seen by later ones only.
        unused = [nothing, nothing, nothing, none(np.float32), none(np.float32), zero, zero, none(np.float32)]
        unused += [zero, nothing, nothing, nothing, nothing, none(np.uint8), nothing]
        given = [queries, keys, values, *cache, *rows, scale, zero, slopes, longest, *unused]
        node = _PagedAttentionExtension([_output(part) for part in given])
        for side in ("k", "v"):
            node.get_rt_info()[f"{side}_head_size"] = width
            node.get_rt_info()[f"num_{side}_heads"] = heads
        return node.output(0)

    def _turned(self, heads: Node, cos: Node, sin: Node) -> Node:
        """(tokens, width) -> each head turned by its token's angles. Written as OpenVINO can fuse it."""
        op, width = self.op, self.head_width
        apart = self._const(np.array([-1, self.config.backbone.heads, 1, width]))
        x = op.reshape(heads, apart, False)
        one, axis = self._const(np.array([1])), self._const(np.array([3]))
        begin, middle, end = (self._const(np.array([n])) for n in (0, width // 2, 2**31 - 1))
        first, second = op.slice(x, begin, middle, one, axis), op.slice(x, middle, end, one, axis)
        across = op.concat([op.multiply(second, self._const(np.float32(-1))), first], -1)
        turned = op.add(op.multiply(x, cos), op.multiply(across, sin))
        return op.reshape(turned, self._const(np.array([-1, self.config.backbone.width])), False)

    def _norm(self, name: str, x: Node) -> Node:
        op, last = self.op, self._const(np.array([-1]))
        weight = self._const(self.weights[f"{name}.weight"])
        if not self.rotary:
            centred = op.mvn(x, last, True, EPSILON, "INSIDE_SQRT")
            return op.add(op.multiply(centred, weight), self._const(self.weights[f"{name}.bias"]))
        mean = op.reduce_mean(op.power(x, self._const(np.float32(2))), last, True)
        root = op.sqrt(op.add(mean, self._const(np.float32(EPSILON))))
        return op.multiply(op.multiply(x, op.divide(self._const(np.float32(1)), root)), weight)

    def _linear(self, name: str, x: Node, bias: str | None = None) -> Node:
        op, codes, scales = self.op, self.weights[f"{name}.codes"], self.weights[f"{name}.scales"]
        outputs, blocks, block = codes.shape
        zero = op.convert(self._const(np.full((outputs, blocks, 1), ZERO, np.uint8)), "f32")
        whole = op.subtract(op.convert(self._const(codes), "f32"), zero)
        weight = op.multiply(whole, self._const(scales[..., None]))
        flat = op.reshape(weight, self._const(np.array([outputs, blocks * block])), False)
        product = op.matmul(x, flat, False, True)
        return product if bias is None else op.add(product, self._const(self.weights[bias]))

    def _parts(self, x: Node, count: int) -> list[Node]:
        """Of the last axis, equal ones."""
        return list(self.op.split(x, self._const(np.int64(-1)), count).outputs())

    def _input(self, name: str, shape: Sequence[int], kind: str = "f32") -> Node:
        node = self.op.parameter(self.ov.PartialShape(list(shape)), getattr(self.ov.Type, kind), name=name)
        node.output(0).get_tensor().set_names({name})
        self.inputs.append(node)
        return node

    def _const(self, value: Any) -> Node:
        """A large array is read where it lies."""
        array = np.asarray(value)
        return self.op.constant(array, shared_memory=array.nbytes >= SHARED)


def _output(node: Node) -> Node:
    return node.output(0) if hasattr(node, "output") else node
