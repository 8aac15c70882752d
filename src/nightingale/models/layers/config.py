"""Configurations of layers that a network's configuration holds. This file is free of torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3's frequency scaling, for contexts longer than the one of its first training stage."""

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_context: int = 8192
