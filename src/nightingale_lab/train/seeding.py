"""Seeded construction of networks, without touching the process's own randomness."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, constructors on the CPU draw from `seed`; afterwards the global generator is as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(torch.Generator().manual_seed(seed).get_state())
        yield
