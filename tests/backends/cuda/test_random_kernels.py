"""Triton's kernels draw the noise and the tokens of the library calls. Without a GPU they are interpreted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parity.tiny import gaussian

from nightingale.backends.cuda.random import int64_key, normal, uniform

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


@pytest.mark.parametrize(("vocab", "numbers"), [(7, 8), (1024, 8), (6563, 2)])
def test_tokens_are_those_of_the_library_calls(kernels: Any, vocab: int, numbers: int) -> None:
    greedy = torch.tensor([True, False, False])
    for number in range(numbers):
        logits, numbers_drawn = 3 * gaussian((3, vocab), number), torch.arange(3) + 7 * number
        logits[:, vocab // 5 : vocab // 2] = -torch.inf
        gumbel = -torch.log(-torch.log(uniform(CPU_KEYS, numbers_drawn, vocab)))
        expected = torch.where(greedy[:, None], logits.double(), logits + gumbel).argmax(dim=-1)
        tokens = kernels.sample(logits.to(DEVICE), KEYS, numbers_drawn.to(DEVICE), greedy.to(DEVICE))
        assert tokens.tolist() == expected.tolist()


def test_logits_that_are_not_numbers_give_a_valid_id(kernels: Any) -> None:
    logits = torch.full((3, 2000), torch.nan, device=DEVICE)
    logits[1:] = -torch.inf
    logits[2, 1500] = torch.inf
    zeros = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    tokens = kernels.sample(logits, KEYS, zeros, zeros.bool()).tolist()
    assert tokens == [0, 0, 1500]
