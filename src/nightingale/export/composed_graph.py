"""A graph that is composed of the graphs of backends/onnx, and the file that several graphs keep their weights in.

Weights are stored as small as that is possible without a change of value: matrices of the compact format in int8,
one scale for each row, and other tensors in float16 if they fit. A Cast and a Mul restore float32; ONNX Runtime folds
them into constants when it loads the graph, so a step costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nightingale.backends.onnx.network_graph import NEW, NetworkGraph
from nightingale.backends.onnx.numpy_weights import Floats
from nightingale.backends.onnx.protobuf import FLOAT, FLOAT16, INT8, INT64

ALIGNMENT: Final = 64
SMALL: Final = 1024
"""Smaller tensors are stored as they are."""
INT8_MAX: Final = 127
DTYPES: Final = {FLOAT: "float32", INT64: "int64"}
"""Names of ONNX's types of inputs and outputs."""


class StreamState(NamedTuple):
    """An input that a stream begins with, and that the output "new." + name replaces after each block."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: float


class WeightsFile:
    """A file of tensors, each of which is written once; graphs in the same folder refer to them."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._file: BinaryIO = path.open("xb")
        self._offsets: dict[str, int] = {}

    def write(self, name: str, value: NDArray[Any]) -> int:
        """Write a tensor, unless there is one of that name, and return its offset."""
        if name not in self._offsets:
            self._file.write(bytes(-self._file.tell() % ALIGNMENT))
            self._offsets[name] = self._file.tell()
            self._file.write(value.tobytes())
        return self._offsets[name]

    def close(self) -> None:
        self._file.close()


class ComposedGraph(NetworkGraph):
    def __init__(self, file: WeightsFile, *, streaming: bool = False) -> None:
        """streaming: caches are inputs and outputs; otherwise each run is a whole utterance."""
        super().__init__({})
        self.weights_file, self._weights, self.streaming = file.name, file, streaming
        self.states: list[StreamState] = []

    def add(
        self,
        part: NetworkGraph,
        prefix: str,
        values: Mapping[str, str],
        *,
        weights: str = "",
    ) -> None:
        """Add the operations of a graph.

        Args:
            part: The graph.
            prefix: Of its names in this one.
            values: The values of this graph that its inputs and outputs become.
            weights: The prefix of its weights, where two parts share them.
        """
        names = {"": "", **values}
        shapes = {value.name: value.shape for value in part.inputs}
        for cache in part.caches:
            rest = [
                size if isinstance(size, int) else f"{prefix}.{cache.name}.past"
                for size in shapes[cache.name][1:]
            ]
            own = self.state(f"{prefix}.{cache.name}", FLOAT, (1, *rest), cache.shape, cache.fill)
            names |= {cache.name: own, NEW + cache.name: NEW + own}
        assert shapes.keys() <= names.keys(), f"{prefix} lacks {sorted(shapes.keys() - names.keys())}"
        for name, value in part.initializers.items():
            names[name] = self.store(f"{weights or prefix}.{name}", value)
        for constant in part.constants:
            if constant.name not in self._names:
                self._names.add(constant.name)
                self.constants.append(constant)
            names[constant.name] = constant.name
        for node in part.nodes:
            inputs, outputs = (
                [names.get(name, f"{prefix}.{name}") for name in group]
                for group in (node.inputs, node.outputs)
            )
            self.nodes.append(node._replace(name=f"{prefix}.{node.name}", inputs=inputs, outputs=outputs))

    def state(
        self, name: str, dtype: int, sizes: tuple[int | str, ...], start: tuple[int, ...], fill: float = 0.0
    ) -> str:
        """Add what a stream passes from block to block; the caller computes NEW + name.

        sizes: With a name for each that changes. start: The shape at the start of a stream.
        """
        if not self.streaming:
            value = np.array(fill, DTYPES[dtype])
            one = self.constant(f"{name}.fill", dtype, value.shape, value.tobytes())
            return self.node("Expand", [one, self.ints(*start)], [name])
        self.states.append(StreamState(name, DTYPES[dtype], start, fill))
        self.output(NEW + name, dtype, sizes)
        return self.input(name, dtype, sizes)

    def tensor(self, name: str, value: NDArray[Any]) -> str:
        return self.store(name, value)

    def store(self, name: str, value: NDArray[Any]) -> str:
        """Add weights, once for each name, in the smallest type that keeps their values."""
        if name in self._names:
            return name
        self._names.add(name)
        value = np.ascontiguousarray(value, np.float32)
        if value.size < SMALL:
            return self._write(name, FLOAT, value)
        if value.ndim > 1 and (rows := exact_int8_rows(value)) is not None:
            codes = self._write(f"{name}.codes", INT8, rows[0])
            scales = self._write(f"{name}.scales", FLOAT, rows[1])
            return self.node("Mul", [self.node("Cast", [codes], to=FLOAT), scales], [name])
        with np.errstate(over="ignore"):
            half = value.astype(np.float16)
        if np.array_equal(half, value):
            return self.node("Cast", [self._write(f"{name}.half", FLOAT16, half)], [name], to=FLOAT)
        return self._write(name, FLOAT, value)

    def _write(self, name: str, dtype: int, value: NDArray[Any]) -> str:
        offset = self._weights.write(name, value)
        return self.external_constant(name, dtype, value.shape, offset=offset, size=value.nbytes)

    def size(self, x: str, axis: int) -> str:
        """Return the size (1,) of an axis."""
        return self.node("Shape", [x], start=axis, end=axis + 1)

    def zeros(self, *sizes: int | str) -> str:
        """Return zeros; a size is a number or a value (1,)."""
        parts = [self.ints(size) if isinstance(size, int) else size for size in sizes]
        return self.node("ConstantOfShape", [self.node("Concat", parts, axis=0)])

    def cut(self, x: str, start: str, end: str, axis: int) -> str:
        """Slice by values (1,)."""
        return self.node("Slice", [x, start, end, self.ints(axis)])

    def range(self, start: str, end: str, step: int = 1) -> str:
        """Return whole numbers between values (1,)."""
        ends = [self.node("Squeeze", [one]) for one in (start, end, self.ints(step))]
        return self.node("Range", ends)


def exact_int8_rows(value: Floats) -> tuple[NDArray[np.int8], Floats] | None:
    """Return codes and scales whose products are exactly a tensor's rows (of its first axis but for ones)."""
    axis = next((axis for axis, size in enumerate(value.shape) if size > 1), 0)
    rows = value.reshape(value.shape[axis], -1)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    codes, scales = np.zeros(rows.shape, np.int8), np.ones_like(largest)
    left = np.arange(len(rows))
    for limit in range(INT8_MAX, 0, -1):  # the largest code of a row is nearly always 127
        scale = (largest[left] / np.float32(limit)).astype(np.float16).astype(np.float32)
        scale[scale == 0] = 1
        rounded = np.rint(rows[left] / scale)
        exact = (np.abs(rounded) <= INT8_MAX).all(axis=1) & (rounded * scale == rows[left]).all(axis=1)
        codes[left[exact]], scales[left[exact]] = rounded[exact].astype(np.int8), scale[exact]
        left = left[~exact]
        if not len(left):
            shape = [size if at == axis else 1 for at, size in enumerate(value.shape)]
            return codes.reshape(value.shape), scales.reshape(shape)
        if limit == INT8_MAX and len(left) > len(rows) // 2:
            return None
    return None
