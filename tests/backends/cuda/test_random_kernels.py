"""Triton's kernels draw the noise of the library calls. Without a GPU they are interpreted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nightingale.backends.cuda.random import int64_key, normal

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
CPU_KEYS = torch.tensor([int64_key(seed, "tokens") for seed in range(3)])
KEYS = CPU_KEYS.to(DEVICE)


@pytest.fixture(scope="module")
def kernels() -> Any:
    from nightingale.backends.cuda import random_kernels

    return random_kernels


@pytest.mark.parametrize(("width", "rows"), [(80, 37), (9, 960), (3, 1)])
@pytest.mark.parametrize("first_row", [0, 12345, 2**34 - 1])
def test_noise_is_that_of_the_library_calls(kernels: Any, width: int, rows: int, first_row: int) -> None:
    first = torch.arange(3) * 1001 + first_row
    noise = kernels.normal(KEYS, first.to(DEVICE), rows, width)
    torch.testing.assert_close(noise.cpu(), normal(CPU_KEYS, first, rows, width), rtol=1e-6, atol=1e-6)
