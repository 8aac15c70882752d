"""Seeded construction of networks that leaves the global generator unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within the context, the global CPU generator is seeded; afterwards it is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(torch.Generator().manual_seed(seed).get_state())
        yield
