"""A file of tensors that can be memory-mapped, and the index that locates each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO, Final, NamedTuple

from numpy.typing import NDArray
from torch import Tensor

TensorSource = Callable[[str], Tensor]
"""Returns a weight of T3 by its name."""
ALIGNMENT: Final = 4096


class TensorLocation(NamedTuple):
    dtype: str
    """The name that numpy uses."""
    shape: tuple[int, ...]
    offset: int


class TensorFileWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.index: dict[str, TensorLocation] = {}

    def write(self, name: str, value: NDArray[Any]) -> TensorLocation:
        self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
        self.index[name] = TensorLocation(value.dtype.name, value.shape, self._file.tell())
        self._file.write(value.data)
        return self.index[name]
