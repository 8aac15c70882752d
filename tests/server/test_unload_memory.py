"""Unloading a model returns its memory to the system."""

from __future__ import annotations

import sys

import pytest

from nightingale.server.service.model_loading import release_memory, resident_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_tensors_are_returned_to_the_system() -> None:
    """PyTorch's allocator on ARM keeps them, whatever the C library is told."""
    torch = pytest.importorskip("torch")
    before = resident_bytes()
    tensors = [torch.ones(1 << 20) for _ in range(50)]
    taken = resident_bytes() - before
    assert taken > 150e6
    del tensors
    release_memory()
    assert resident_bytes() - before < 0.25 * taken
