"""Random numbers by address."""

from __future__ import annotations

import torch

from nightingale.backends.cuda.random import bits, key_of, normal, uniform

MASK = (1 << 64) - 1


def split_mix(seed: int, count: int) -> list[int]:
    """SplitMix64 as it is published: a state that is moved on, and hashed."""
    out, state = [], seed & MASK
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        out.append(z ^ (z >> 31))
    return out


def test_the_numbers_are_those_of_splitmix64() -> None:
    assert split_mix(1234567, 2) == [6457827717110365317, 3203168211198807973]  # the published check values
    for seed in (1234567, -5, key_of(1, "tokens")):
        ours = bits(torch.tensor(seed), torch.arange(50))
        assert [int(x) & MASK for x in ours] == split_mix(seed, 50)


def test_any_part_of_a_stream_can_be_read_alone() -> None:
    key = torch.tensor([key_of(3, "flow")])
    assert torch.equal(normal(key, torch.arange(100))[40:60], normal(key, torch.arange(40, 60)))


def test_purposes_and_seeds_have_streams_of_their_own() -> None:
    keys = [key_of(seed, purpose) for seed in range(20) for purpose in ("tokens", "flow", "source")]
    assert len(set(keys)) == 60
    assert key_of(3, "flow") == key_of(3, "flow")


def test_uniform_and_normal_numbers_are_what_they_are_called() -> None:
    keys, index = torch.tensor([key_of(s, "test") for s in range(4)])[:, None], torch.arange(50_000)
    even, round_ = uniform(keys, index), normal(keys, index)
    assert even.min() >= 0
    assert even.max() < 1
    assert (even.mean() - 0.5).abs() < 0.003
    assert round_.dtype == torch.float32
    assert round_.mean().abs() < 0.01
    assert (round_.std() - 1).abs() < 0.01
    assert (round_.pow(4).mean() - 3).abs() < 0.1
    assert torch.isfinite(round_).all()
    near = torch.corrcoef(torch.stack([round_[0, :-1], round_[0, 1:], round_[1, 1:]]))
    assert (near - torch.eye(3)).abs().max() < 0.02
