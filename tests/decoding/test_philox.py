"""Philox4x32-10 in numpy: the published values, addressing by position, and the distributions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from nightingale.decoding.philox import first_uniforms, normal, philox, stream_key, uniform, uniform_rows
from nightingale.decoding.sampling import draw

KEY = stream_key(7, "flow")
ONES = 0xFFFFFFFF
KNOWN_ANSWERS = [  # Random123 1.09, tests/kat_vectors: counter, key, result
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def bits_of(counters: list[tuple[int, ...]], key: tuple[int, int]) -> np.ndarray:
    """Return the bits (n, 4) of n counters under a key of two words, the low one first."""
    return philox(np.array(counters, np.uint32).T, key[0] | key[1] << 32)


def test_the_values_are_those_of_random123() -> None:
    for counter, key, expected in KNOWN_ANSWERS:
        assert bits_of([counter], key).tolist() == [list(expected)]


def test_counters_are_independent() -> None:
    bits = bits_of([known[0] for known in KNOWN_ANSWERS] * 2, KNOWN_ANSWERS[2][1])
    assert bits.shape == (6, 4)
    assert bits[2].tolist() == bits[5].tolist() == list(KNOWN_ANSWERS[2][2])


def test_seeds_and_purposes_have_streams_of_their_own() -> None:
    keys = {stream_key(seed, purpose) for seed in range(20) for purpose in ("tokens", "flow", "source")}
    assert len(keys) == 60
    assert all(0 <= key < 2**64 for key in keys)
    assert len({tuple(uniform(key, 0, np.arange(4))) for key in keys}) == 60


def test_a_seed_gives_the_same_numbers_in_every_release() -> None:
    key = stream_key(7, "tokens")
    assert key == 0x3A48C18AAA44B257
    drawn = [draw(np.zeros(6561, np.float32), key, number) for number in range(5)]
    assert drawn == [5520, 4717, 840, 1415, 1001]


@pytest.mark.parametrize("count", [1, 3, 50, 255, 256, 5000])
def test_a_subset_of_ids_gets_the_values_it_has_among_all(count: int) -> None:
    every = uniform_rows(KEY, 3, 2, 6563)
    ids = np.sort(np.random.default_rng(count).permutation(6563)[:count])
    assert np.array_equal(uniform(KEY, 4, ids), every[1, ids])
    assert not np.array_equal(every[0], every[1])


def test_uniform_numbers_are_lanes_of_the_counter_of_their_id_and_draw() -> None:
    (bits,) = philox(np.array([[1000], [9], [0], [0]]), KEY)
    assert uniform(KEY, 9, np.arange(4000, 4004)).tolist() == [(int(b) + 0.5) / 2**32 for b in bits]


@pytest.mark.parametrize("width", [1, 3, 9, 80])
@pytest.mark.parametrize(
    "sizes",
    [[50], [1] * 50, [8] * 6 + [2], [7, 9, 1, 16, 17], [49, 1], [0, 25, 0, 25]],
    ids=["whole", "ones", "eights", "odd", "tail", "empty"],
)
def test_rows_read_in_chunks_equal_the_rows_read_whole(sizes: list[int], width: int) -> None:
    chunks, at = [], 11
    for size in sizes:
        chunks.append(normal(KEY, at, size, width))
        at += size
    assert np.array_equal(np.concatenate(chunks), normal(KEY, 11, 50, width))


@pytest.mark.parametrize("count", [1, 4, 9])
def test_the_first_numbers_are_those_of_the_first_ids(count: int) -> None:
    for seed in (0, 7):
        key = stream_key(seed, "phase")
        assert first_uniforms(key, count) == uniform(key, 0, np.arange(count)).tolist()


def test_rows_beyond_32_bits_are_other_rows() -> None:
    far = 2**34
    assert not np.array_equal(normal(KEY, 0, 4, 9), normal(KEY, far, 4, 9))
    assert np.array_equal(normal(KEY, far - 2, 4, 9)[2:], normal(KEY, far, 2, 9))


def test_uniform_numbers_are_uniform() -> None:
    values = uniform_rows(KEY, 0, 40, 5000)
    assert 0 < values.min() < values.max() < 1
    assert abs(values.mean() - 0.5) < 0.003
    counts = np.bincount((values * 100).astype(int).ravel(), minlength=100)
    expected = values.size / 100
    assert ((counts - expected) ** 2 / expected).sum() < 161  # chi-square, 99 degrees, 1 in 10,000


def test_noise_is_standard_normal() -> None:
    rows = normal(stream_key(1, "flow"), 0, 4000, 80)
    assert rows.shape == (4000, 80)
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()
    assert abs(rows.mean()) < 0.01
    assert abs(rows.std() - 1) < 0.01
    assert abs((rows**4).mean() - 3) < 0.1
    neighbours = np.corrcoef(np.stack([rows[:-1].ravel(), rows[1:].ravel(), np.roll(rows, 1)[1:].ravel()]))
    assert np.abs(neighbours - np.eye(3)).max() < 0.01


def test_every_word_gives_a_finite_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logarithm of the smallest word is finite, and the root of that of the largest is a number."""
    words = np.array([[0, ONES], [ONES, 0]])
    monkeypatch.setattr(
        "nightingale.decoding.philox._rounds", lambda *_: (words.astype(np.uint64), words.astype(np.uint32))
    )
    values = normal(0, 0, 2, 4)
    assert np.isfinite(values).all()
    assert np.abs(values).max() == pytest.approx(math.sqrt(2 * 33 * math.log(2)), rel=1e-6)


@pytest.mark.thorough
def test_samples_follow_the_probabilities() -> None:
    """20,000 samples: chi-square with 7 degrees of freedom, 1 in 10,000."""
    logits = np.array([1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0, 2.0], np.float32)
    drawn = [draw(logits, stream_key(1, "tokens"), number) for number in range(20_000)]
    expected = np.exp(logits) / np.exp(logits).sum() * 20_000
    assert ((np.bincount(drawn, minlength=8) - expected) ** 2 / expected).sum() < 29.9


def _seconds(run: Callable[[], object]) -> float:
    def once() -> float:
        started = time.thread_time()
        run()
        return time.thread_time() - started

    return min(once() for _ in range(20))


def test_sampling_and_noise_are_cheap() -> None:
    """Limits of the thread's CPU time for any machine; a Neoverse-N1 takes 0.09, 0.3 and 7.8 ms."""
    few, every = np.arange(0, 6550, 131), np.arange(6563)
    assert _seconds(lambda: uniform(KEY, 3, few)) < 0.5e-3
    assert _seconds(lambda: uniform(KEY, 3, every)) < 2e-3
    assert _seconds(lambda: normal(KEY, 0, 24_000, 9)) < 40e-3
