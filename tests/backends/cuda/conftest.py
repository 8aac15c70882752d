"""Triton's kernels are compiled on a GPU; without one they run in Triton's interpreter.

Triton reads the environment when a kernel is defined, so the modules with kernels are imported inside of
tests and fixtures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def _interpreter_without_a_gpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setitem(os.environ, "TRITON_INTERPRET", "1")
        yield
