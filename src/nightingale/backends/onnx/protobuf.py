"""Just enough of ONNX's file format to write a graph whose weights lie in a file beside it.

The format is protobuf: numbered fields, each a varint or a counted string of bytes. Writing the dozen that
are needed takes a page; the `onnx` package would hold all weights in memory to do it. Numbers of fields and
of types are those of onnx.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FLOAT, UINT8, INT32, INT64 = 1, 2, 6, 7
CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
IR_VERSION, OPSET = 10, 21


def _varint(value: int) -> bytes:
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


def _attribute(name: str, value: int | float) -> bytes:
    if isinstance(value, float):
        held = _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, 1)
    else:
        held = _number(3, value) + _number(20, 2)
    return _bytes(5, _bytes(1, name) + held)


def _value(name: str, kind: int, shape: Sequence[int | str]) -> bytes:
    """The name, type and shape of an input or output; a word in the shape is a size known only when run."""
    sizes = b"".join(_bytes(1, _bytes(2, s) if isinstance(s, str) else _number(1, s)) for s in shape)
    return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, kind) + _bytes(2, sizes)))


@dataclass
class Graph:
    """A graph while it is written."""

    weights_file: str
    """Name of the file beside it that holds the weights."""
    _nodes: list[bytes] = field(default_factory=list)
    _weights: list[bytes] = field(default_factory=list)
    _inputs: list[bytes] = field(default_factory=list)
    _outputs: list[bytes] = field(default_factory=list)

    def input(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        self._inputs.append(_bytes(11, _value(name, kind, shape)))
        return name

    def output(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        self._outputs.append(_bytes(12, _value(name, kind, shape)))
        return name

    def small(self, name: str, kind: int, shape: Sequence[int], data: bytes) -> str:
        """A constant that lies in the graph itself."""
        head = b"".join(_number(1, size) for size in shape) + _number(2, kind) + _bytes(8, name)
        self._weights.append(_bytes(5, head + _bytes(9, data)))
        return name

    def weight(self, name: str, kind: int, shape: Sequence[int], *, offset: int, size: int) -> str:
        """A constant of `size` bytes at `offset` of the weights file."""
        head = b"".join(_number(1, n) for n in shape) + _number(2, kind) + _bytes(8, name)
        where = {"location": self.weights_file, "offset": str(offset), "length": str(size)}
        entries = b"".join(_bytes(13, _bytes(1, key) + _bytes(2, value)) for key, value in where.items())
        self._weights.append(_bytes(5, head + entries + _number(14, 1)))
        return name

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        domain: str = "",
        attributes: Mapping[str, int | float] | None = None,
    ) -> str:
        """An operation; an empty name is an input or output that is left out. Its first output."""
        names = b"".join(_bytes(1, name) for name in inputs) + b"".join(_bytes(2, name) for name in outputs)
        # Unique, because profiles and error messages speak of nodes by name.
        names += _bytes(3, f"{kind}.{len(self._nodes)}") + _bytes(4, kind)
        settings = b"".join(_attribute(name, value) for name, value in (attributes or {}).items())
        self._nodes.append(_bytes(1, names + settings + _bytes(7, domain)))
        return outputs[0]

    def model(self) -> bytes:
        graph = b"".join([*self._nodes, _bytes(2, "t3"), *self._weights, *self._inputs, *self._outputs])
        opsets = b"".join(
            _bytes(8, _bytes(1, domain) + _number(2, version))
            for domain, version in (("", OPSET), (CONTRIB, 1))
        )
        return _number(1, IR_VERSION) + _bytes(2, "nightingale") + _bytes(7, graph) + opsets
