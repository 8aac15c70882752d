"""A cache bounded by bytes, in which the least recently used entry goes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Key = TypeVar("Key")
Value = TypeVar("Value", bound=_Sized)


class BytesLRU(Generic[Key, Value]):
    """`functools.lru_cache` counts entries; voice prompts differ in size a hundredfold, so this counts bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: dict[Key, Value] = {}

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made if it is not cached."""
        value = self._values.pop(key, None)
        if value is None:
            value = make()
            while (
                self._values and value.nbytes + sum(v.nbytes for v in self._values.values()) > self._max_bytes
            ):
                self._values.pop(next(iter(self._values)))
        self._values[key] = value
        return value
