"""A cache bounded by bytes, in which the least recently used entry goes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BytesLRU(Generic[Key, Value]):
    """`functools.lru_cache` counts entries; voice prompts differ in size a hundredfold, so this counts bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: dict[Key, Any] = {}

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made if it is not cached. Values have `nbytes`, as numpy arrays do."""
        value = self._values.pop(key, None)
        self._values[key] = value = make() if value is None else value
        while len(self._values) > 1 and sum(v.nbytes for v in self._values.values()) > self._max_bytes:
            self._values.pop(next(iter(self._values)))
        return value
