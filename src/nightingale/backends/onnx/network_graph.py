"""The builder that the graphs of the flow, the vocoder and the encoders are written with, and their sessions.

A graph holds operations only. Its weights are numpy arrays that are handed to ONNX Runtime by reference when
the session is created, so that building copies nothing and the model that ONNX Runtime parses is small.

A streaming network carries state from block to block. Each `cache` of a graph is an input, and an output with
the prefix "new."; `StreamingSession` passes the outputs of one block to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nightingale.backends.onnx.numpy_weights import (
    Floats,
    LazyFloats,
    PackedWeights,
    RowQuantized,
    dequantize,
    quantize_blocks,
)
from nightingale.backends.onnx.protobuf import CONTRIB, FLOAT, INT64, UINT8, OnnxGraph

WEIGHTS_FILE: Final = "weights.bin"
"""The file of external weights, beside a graph on disk. `create_session` passes arrays in its place."""
NEW: Final = "new."
STORED_TYPES: Final[dict[np.dtype[Any], int]] = {
    np.dtype(np.float32): FLOAT,
    np.dtype(np.uint8): UINT8,
}
"""The types of weights in a graph; others are converted to float32."""
INT8_INPUTS: Final = 4
"""The `accuracy_level` of MatMulNBits that quantizes the inputs to int8 too."""
Residual = tuple[str, str] | None
"""A layer's part of the residual stream: its product, and its name, whose bias is not added yet."""


class Cache(NamedTuple):
    """Values that a layer keeps between blocks."""

    name: str
    shape: tuple[int, ...]
    """At the start of a stream, for one row; the row axis comes first."""
    axis: int
    """The time axis."""
    fill: float
    """The value at the start of a stream."""
    positions_per_token: int
    """The growth of keys and values with each token of a block; 0 for the inputs of a convolution."""


class TensorFile(Protocol):
    def write(self, name: str, value: NDArray[Any]) -> int:
        """Write a tensor and return its offset."""


class NetworkGraph(OnnxGraph):
    """The operations that the networks share. Activations are (rows, time, channels) unless a name says so."""

    def __init__(
        self,
        weights: PackedWeights,
        *,
        int8: bool = False,
        file: TensorFile | None = None,
    ) -> None:
        """Start a graph over weights by name.

        Args:
            weights: By their names in the checkpoint.
            int8: Products take weights and inputs as integers.
            file: Gets the weights, instead of the session.
        """
        super().__init__(WEIGHTS_FILE)
        self.packed, self.weights, self._file = weights, LazyFloats(weights.__getitem__), file
        self.int8 = int8
        self.initializers: dict[str, NDArray[Any]] = {}
        self._names: set[str] = set()
        self.caches: list[Cache] = []

    def tensor(self, name: str, value: NDArray[Any]) -> str:
        """Add weights in uint8 or float32, once for each name."""
        if name not in self._names:
            self._names.add(name)
            kind = value.dtype if value.dtype in STORED_TYPES else np.dtype(np.float32)
            stored, dtype, offset = np.ascontiguousarray(value, kind), STORED_TYPES[kind], 0
            if self._file is None:
                self.initializers[name] = stored
            else:
                offset = self._file.write(name, stored)
            self.external_constant(name, dtype, stored.shape, offset=offset, size=stored.nbytes)
        return name

    def weight(self, name: str) -> str:
        """Add weights under their name in the checkpoint."""
        return self.tensor(name, self.weights[name])

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of weights without converting them."""
        value = self.packed[name]
        return (value.codes if isinstance(value, RowQuantized) else value).shape

    def ints(self, *values: int) -> str:
        name = f"ints{values}"
        return name if name in self._names else self._small_constant(name, INT64, np.array(values, np.int64))

    def number(self, value: float) -> str:
        name = f"number({value})"
        return name if name in self._names else self._small_constant(name, FLOAT, np.array(value, np.float32))

    def _small_constant(self, name: str, dtype: int, value: NDArray[Any]) -> str:
        self._names.add(name)
        return self.constant(name, dtype, value.shape, value.tobytes())

    def cache(
        self,
        name: str,
        shape: Sequence[int | str],
        *,
        axis: int,
        start: int = 0,
        fill: float = 0.0,
        positions_per_token: int = 0,
    ) -> str:
        """Add a cache whose time axis has `start` columns at first; the caller adds the output NEW + name."""
        self.input(name, FLOAT, ("rows", *shape))
        self.output(NEW + name, FLOAT, ("rows", *shape))
        sizes = [1, *(size if isinstance(size, int) else 0 for size in shape)]
        sizes[axis] = start
        self.caches.append(Cache(name, tuple(sizes), axis, fill, positions_per_token))
        return name

    def slice(self, x: str, start: int, end: int | None, axis: int, out: str = "") -> str:
        last = np.iinfo(np.int64).max if end is None else end
        outputs = [out] if out else []
        return self.node("Slice", [x, self.ints(start), self.ints(int(last)), self.ints(axis)], outputs)

    def matmul(self, x: str, name: str) -> str:
        """Multiply by the weights of a linear layer, without its bias."""
        return self.product(x, name, self.packed[f"{name}.weight"])

    def product(
        self, x: str, name: str, weight: Floats | RowQuantized, out: str = "", *, bias: str = ""
    ) -> str:
        """Multiply x (…, inputs) by a matrix (outputs, inputs).

        name: of the matrix in the graph. bias: the name of weights that are added.
        """
        outputs = [out] if out else []
        if self.int8:
            blocks = quantize_blocks(weight)
            factors = [
                x,
                self.tensor(f"{name}.codes", blocks.codes),
                self.tensor(f"{name}.scales", blocks.scales),
                *(["", "", self.weight(bias)] if bias else []),
            ]
            count, number, block = blocks.codes.shape
            sizes = {"K": number * block, "N": count, "bits": 8, "block_size": block}
            return self.node(
                "MatMulNBits", factors, outputs, domain=CONTRIB, **sizes, accuracy_level=INT8_INPUTS
            )
        factors = [x, self.tensor(f"{name}.weight", dequantize(weight))]
        if not bias:
            return self.node("FusedMatMul", factors, outputs, domain=CONTRIB, transB=1)
        product = self.node("FusedMatMul", factors, domain=CONTRIB, transB=1)
        return self.node("Add", [product, self.weight(bias)], outputs)

    def linear(self, x: str, name: str) -> str:
        return self.product(x, name, self.packed[f"{name}.weight"], bias=f"{name}.bias")

    def layer_norm(self, x: str, name: str, epsilon: float, *, gain: float = 1.0) -> str:
        """Normalize over channels; `gain` scales the result."""
        weights = [
            self.tensor(f"{name}.{part}*{gain}", gain * self.weights[f"{name}.{part}"])
            for part in ("weight", "bias")
        ]
        return self.node("LayerNormalization", [x, *weights], epsilon=epsilon, axis=-1)

    def add_layer_norm(self, x: str, residual: Residual, name: str, epsilon: float) -> tuple[str, str]:
        """Return the norm of x and a residual, and their sum."""
        if residual is None:
            return self.layer_norm(x, name, epsilon), x
        product, layer = residual
        weights = [self.weight(f"{name}.weight"), self.weight(f"{name}.bias"), self.weight(f"{layer}.bias")]
        normed, total = f"{name}.normed", f"{name}.sum"
        outputs = [normed, "", "", total]
        inputs = [x, product, *weights]
        self.node("SkipLayerNormalization", inputs, outputs, domain=CONTRIB, epsilon=epsilon)
        return normed, total

    def add_residual(self, x: str, residual: Residual) -> str:
        if residual is None:
            return x
        product, layer = residual
        return self.node("Add", [x, self.node("Add", [product, self.weight(f"{layer}.bias")])])

    def causal_conv(self, x: str, name: str) -> str:
        """Convolve along time; the inputs before the block come from a cache, zeros at the start."""
        _, inputs, taps = self.shape(f"{name}.weight")
        cache = self.cache(f"{name}.inputs", ("past", inputs), axis=1, start=taps - 1)
        joined = self.node("Concat", [cache, x], axis=1)
        self.slice(joined, 1 - taps, None, 1, NEW + cache)
        return self.conv_of_windows(joined, name)

    def conv_of_windows(self, x: str, name: str) -> str:
        """Convolve without padding: all taps of a position side by side, then one product."""
        outputs, inputs, taps = self.shape(f"{name}.weight")
        shifted = [self.slice(x, tap, tap - taps + 1 or None, 1) for tap in range(taps)]
        windows = self.node("Concat", shifted, axis=2)
        weight, matrix = self.packed[f"{name}.weight"], (outputs, taps * inputs)
        by_tap = (
            RowQuantized(weight.codes.transpose(0, 2, 1).reshape(matrix), weight.scales)
            if isinstance(weight, RowQuantized)
            else weight.transpose(0, 2, 1).reshape(matrix)
        )
        return self.product(windows, name, by_tap, bias=f"{name}.bias")

    def attention(
        self,
        qkv: Sequence[str],
        name: str,
        *,
        heads: int,
        head_width: int,
        positions_per_token: int,
        max_positions: int | None,
        score_bias: str,
        input_bias: str = "",
    ) -> str:
        """Attend to the block and to the cached positions before it.

        score_bias: (rows, heads or 1, time, positions), added to the scores. input_bias: of all three, joined.
        """
        shape = (heads, "cached", head_width)
        past = [
            self.cache(f"{name}.{part}", shape, axis=2, positions_per_token=positions_per_token)
            for part in ("keys", "values")
        ]
        joined = [f"{cache}.joined" for cache in past]
        outputs = [f"{name}.attended", *joined]
        inputs = [*qkv, input_bias, "", score_bias, *past]
        self.node("MultiHeadAttention", inputs, outputs, domain=CONTRIB, num_heads=heads)
        for cache, whole in zip(past, joined, strict=True):
            if max_positions is None:
                self.node("Identity", [whole], [NEW + cache])
            else:
                self.slice(whole, -max_positions, None, 2, NEW + cache)
        return outputs[0]
