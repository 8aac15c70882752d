"""Random numbers on tensors: those of decoding/philox.py, also by Triton's kernels."""

from __future__ import annotations

import numpy as np
import torch

from nightingale.backends.cuda.random import int64_key, normal, philox, uniform
from nightingale.decoding import philox as reference

SEEDS = [(seed, purpose) for seed in (0, 1, 12345) for purpose in ("tokens", "flow", "source")]
KEYS = [reference.stream_key(*each) for each in SEEDS]
SIGNED = torch.tensor([int64_key(*each) for each in SEEDS])


def test_keys_are_held_bit_for_bit() -> None:
    assert [int(key) % 2**64 for key in SIGNED] == KEYS
    assert (SIGNED < 0).any()
    assert (SIGNED > 0).any()


def test_words_are_those_of_numpy() -> None:
    counters = np.random.default_rng(1).integers(0, 2**32, (1000, 4), dtype=np.uint32)
    for key, signed in zip(KEYS, SIGNED, strict=True):
        words = philox(tuple(torch.from_numpy(counters.astype(np.int64)).T), signed)  # type: ignore[arg-type]
        expected = reference.philox(counters.T, key)
        assert torch.stack(words, dim=-1).tolist() == expected.tolist()


def test_uniform_numbers_are_those_of_numpy_bit_for_bit() -> None:
    ours = uniform(SIGNED, torch.arange(len(KEYS)) * 70, 6563)
    for row, key in enumerate(KEYS):
        assert np.array_equal(ours[row].numpy(), reference.uniform(key, 70 * row, np.arange(6563)))


def test_normal_numbers_are_those_of_numpy_to_rounding() -> None:
    for width, rows in ((80, 37), (9, 960)):
        first = torch.arange(len(KEYS)) * 1001
        ours = normal(SIGNED, first, rows, width)
        for row, key in enumerate(KEYS):
            expected = reference.normal(key, 1001 * row, rows, width)
            np.testing.assert_allclose(ours[row].T.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_any_part_of_a_stream_can_be_read_alone() -> None:
    whole = normal(SIGNED[:1], torch.tensor([0]), 100, 9)
    assert torch.equal(whole[:, :, 40:60], normal(SIGNED[:1], torch.tensor([40]), 20, 9))
