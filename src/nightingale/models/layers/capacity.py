"""The limit of a KV cache. This file is free of torch."""

from __future__ import annotations

from nightingale.errors import MemoryFull


def check_capacity(positions: int, capacity: int) -> None:
    """Raise `MemoryFull` if a sequence of so many positions does not fit."""
    if positions > capacity:
        raise MemoryFull(
            "the utterance is longer than its KV cache",
            got=f"{positions} positions",
            allowed=f"at most {capacity}",
            fix="Use a shorter sentence, or open the session with a larger capacity.",
        )
