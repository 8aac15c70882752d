"""Seeds of requests and of their segments."""

from __future__ import annotations

from nightingale.decoding.philox import SEED_LIMIT, fresh_seed, nth_seed


def test_fresh_seeds_differ_and_fit() -> None:
    seeds = {fresh_seed() for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < SEED_LIMIT for seed in seeds)


def test_the_first_segment_keeps_the_seed_and_the_others_have_their_own() -> None:
    seeds = [nth_seed(7, segment) for segment in range(50)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 50
    assert all(0 <= seed < SEED_LIMIT for seed in seeds)
