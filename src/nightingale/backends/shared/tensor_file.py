"""A file of weights, and where in it each of them lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from numpy.typing import NDArray
from torch import Tensor

Source = Callable[[str], Tensor]
"""A weight of T3 by its name."""
ALIGNMENT = 4096
"""Of weights in their file, so that they can be mapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    kind: str
    """As numpy names it."""
    shape: tuple[int, ...]
    offset: int


class WeightFile:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.places: dict[str, Place] = {}

    def write(self, name: str, value: NDArray[Any]) -> Place:
        self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
        place = Place(kind=value.dtype.name, shape=value.shape, offset=self._file.tell())
        self._file.write(value.data)
        self.places[name] = place
        return place
