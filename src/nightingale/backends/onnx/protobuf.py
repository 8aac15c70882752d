"""A writer of ONNX models whose weights lie in a separate file.

The format is protobuf: numbered fields, each a varint or a length-prefixed byte string. The dozen fields that
are needed take a page of code; the `onnx` package would hold all weights in memory to write them. Field and
type numbers are those of onnx.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

FLOAT, UINT8, INT8, INT32, INT64, FLOAT16, DOUBLE = 1, 2, 3, 6, 7, 10, 11
CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
IR_VERSION, OPSET = 10, 21


_ONE_BYTE = [bytes([value]) for value in range(128)]


def _varint(value: int) -> bytes:
    if 0 <= value < len(_ONE_BYTE):  # almost all of them
        return _ONE_BYTE[value]
    value &= (1 << 64) - 1  # negative numbers are ten bytes of two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes(number: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


Attribute = int | float | str | Sequence[int]


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, float):
        encoded = _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, 1)
    elif isinstance(value, int):
        encoded = _number(3, value) + _number(20, 2)
    elif isinstance(value, str):
        encoded = _bytes(4, value) + _number(20, 3)
    else:
        encoded = b"".join(_number(8, item) for item in value) + _number(20, 7)
    return _bytes(5, _bytes(1, name) + encoded)


class ValueInfo(NamedTuple):
    """An input or output of a graph; a name in the shape is a size that is known only at run time."""

    name: str
    dtype: int
    shape: Sequence[int | str]

    def encode(self) -> bytes:
        sizes = b"".join(_bytes(1, _bytes(2, s) if isinstance(s, str) else _number(1, s)) for s in self.shape)
        return _bytes(1, self.name) + _bytes(2, _bytes(1, _number(1, self.dtype) + _bytes(2, sizes)))


class Constant(NamedTuple):
    """A tensor that is stored in the model itself."""

    name: str
    dtype: int
    shape: Sequence[int]
    data: bytes


class Node(NamedTuple):
    """An operation."""

    name: str
    op_type: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    domain: str
    attributes: Mapping[str, Attribute]

    def encode(self) -> bytes:
        encoded = b"".join(_bytes(1, given) for given in self.inputs)
        encoded += b"".join(_bytes(2, out) for out in self.outputs)
        encoded += _bytes(3, self.name) + _bytes(4, self.op_type)
        encoded += b"".join(_attribute(key, value) for key, value in self.attributes.items())
        return encoded + _bytes(7, self.domain)


@dataclass
class OnnxGraph:
    weights_file: str = ""
    """Name of the file beside the model that holds the external weights."""
    nodes: list[Node] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    inputs: list[ValueInfo] = field(default_factory=list)
    outputs: list[ValueInfo] = field(default_factory=list)
    _external: list[bytes] = field(default_factory=list)

    def input(self, name: str, dtype: int, shape: Sequence[int | str]) -> str:
        self.inputs.append(ValueInfo(name, dtype, shape))
        return name

    def output(self, name: str, dtype: int, shape: Sequence[int | str]) -> str:
        self.outputs.append(ValueInfo(name, dtype, shape))
        return name

    def constant(self, name: str, dtype: int, shape: Sequence[int], data: bytes) -> str:
        """Add a constant that is stored in the model itself."""
        self.constants.append(Constant(name, dtype, shape, data))
        return name

    def external_constant(
        self, name: str, dtype: int, shape: Sequence[int], *, offset: int, size: int
    ) -> str:
        """Add a constant of `size` bytes at `offset` of the weights file."""
        location = {"location": self.weights_file, "offset": str(offset), "length": str(size)}
        entries = b"".join(_bytes(13, _bytes(1, key) + _bytes(2, value)) for key, value in location.items())
        self._external.append(_initializer(name, dtype, shape, entries + _number(14, 1)))
        return name

    def unique(self, name: str) -> str:
        """Return a name that later operations do not get."""
        return f"{name}.{len(self.nodes)}"

    def node(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str] = (),
        *,
        domain: str = "",
        **attributes: Attribute,
    ) -> str:
        """Add an operation and return the name of its first output, which is generated if none is given.

        An empty name stands for an input or output that is left out.
        """
        # Unique, because profiles and error messages name nodes.
        name = self.unique(op_type)
        outputs = outputs or [name]
        self.nodes.append(Node(name, op_type, inputs, outputs, domain, attributes))
        return outputs[0]

    def model(self) -> bytes:
        weights = [
            *self._external,
            *(_initializer(*one[:3], _bytes(9, one.data)) for one in self.constants),
        ]
        fields = {
            1: [node.encode() for node in self.nodes],
            2: [b"nightingale"],
            5: weights,
            11: [value.encode() for value in self.inputs],
            12: [value.encode() for value in self.outputs],
        }
        graph = b"".join(_bytes(number, value) for number, values in fields.items() for value in values)
        opsets = b"".join(
            _bytes(8, _bytes(1, domain) + _number(2, version))
            for domain, version in (("", OPSET), (CONTRIB, 1))
        )
        return _number(1, IR_VERSION) + _bytes(2, "nightingale") + _bytes(7, graph) + opsets


def _initializer(name: str, dtype: int, shape: Sequence[int], data: bytes) -> bytes:
    return b"".join(_number(1, size) for size in shape) + _number(2, dtype) + _bytes(8, name) + data
