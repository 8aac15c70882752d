"""Every draw belongs to its request."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nightingale import TTS
from nightingale.decoding.seeds import SEED_LIMIT, NoiseTape, RaceTape, fresh_seed, generator
from nightingale.decoding.sampling import draw


def tape(seed: int = 7, purpose: str = "flow") -> NoiseTape:
    return NoiseTape(seed, purpose, width=3, block_rows=8)


@pytest.mark.parametrize(
    "sizes",
    [[50], [1] * 50, [8] * 6 + [2], [7, 9, 1, 16, 17], [49, 1], [0, 25, 0, 25]],
    ids=["whole", "ones", "blocks", "odd", "tail", "empty"],
)
def test_a_tape_read_in_pieces_equals_the_tape_read_whole(sizes: list[int]) -> None:
    read, at = tape(), 0
    pieces = []
    for size in sizes:
        pieces.append(read.read(at, size))
        at += size
    assert torch.equal(torch.cat(pieces), tape().read(0, 50))


def test_rows_may_be_read_from_the_middle_and_again() -> None:
    read, whole = tape(), tape().read(0, 40)
    assert torch.equal(read.read(21, 10), whole[21:31])
    assert torch.equal(read.read(5, 10), whole[5:15])


def test_forgetting_the_past_does_not_change_the_future() -> None:
    read, whole = tape(), tape().read(0, 64)
    read.read(0, 20)
    read.forget_before(17)
    assert torch.equal(read.read(17, 40), whole[17:57])
    assert len(read._blocks) == 6  # 2 … 7


def test_noise_is_standard_normal() -> None:
    rows = NoiseTape(1, "flow", width=80, block_rows=64).read(0, 500)
    assert rows.shape == (500, 80)
    assert abs(float(rows.mean())) < 0.02
    assert abs(float(rows.std()) - 1) < 0.02


def test_seeds_and_purposes_have_streams_of_their_own() -> None:
    streams = [torch.rand(4, generator=generator(s, p)) for s in (0, 1) for p in ("tokens", "flow", "source")]
    assert len({tuple(stream.tolist()) for stream in streams}) == 6


def test_a_seed_means_the_same_tomorrow() -> None:
    drawn = torch.randint(10_000, (5,), generator=generator(7, "tokens")).tolist()
    assert drawn == [2447, 9489, 3122, 7055, 3986]


def test_fresh_seeds_differ_and_fit() -> None:
    seeds = {fresh_seed() for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < SEED_LIMIT for seed in seeds)


def test_loading_and_speaking_leave_the_global_generator_alone(brief: TTS) -> None:
    import numpy as np

    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    TTS("noise")
    brief.say("Hello", seed=1)
    brief.say("Hello")
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == numpy_before


def test_the_global_generator_does_not_reach_the_sound(brief: TTS) -> None:
    first = brief.say("Hello", seed=1)
    torch.rand(17)
    assert brief.say("Hello", seed=1).sha256 == first.sha256


def test_races_in_order_are_the_draws_of_torchs_own_sampler() -> None:
    """The official samplers draw with torch.multinomial: its draws from the same generator, bit for bit."""
    theirs, tape = torch.Generator().manual_seed(5), RaceTape(torch.Generator().manual_seed(5), width=300)
    scores = torch.randn(200, 300, generator=torch.Generator().manual_seed(1)) * 3
    scores[:, 40:200] = -torch.inf
    for number, row in enumerate(scores):
        drawn = int(torch.multinomial(row.softmax(-1), 1, generator=theirs))
        assert draw(row.numpy(), tape.read(number)) == drawn


def test_a_race_looked_at_before_its_turn_is_not_changed_by_it() -> None:
    ahead, in_order = (RaceTape(torch.Generator().manual_seed(2), width=4) for _ in range(2))
    seen = [ahead.read(number).copy() for number in (2, 0, 1)]
    ahead.forget_before(1)
    expected = [in_order.read(number) for number in range(4)]
    assert np.array_equal(seen, [expected[n] for n in (2, 0, 1)])
    assert np.array_equal(ahead.read(3), expected[3])


def test_races_and_torchs_own_sampler_draw_alike() -> None:
    """20,000 draws of each, from other generators: chi-square with 7 degrees of freedom, 1 in 10,000."""
    scores = torch.tensor([1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0, 2.0])
    tape, theirs = RaceTape(generator(1, "tokens"), width=8), torch.Generator().manual_seed(99)
    mine = torch.bincount(
        torch.tensor([draw(scores.numpy(), tape.read(n)) for n in range(20_000)]), minlength=8
    )
    reference = torch.multinomial(scores.softmax(-1), 20_000, replacement=True, generator=theirs)
    other = torch.bincount(reference, minlength=8)
    assert float(((mine - other) ** 2 / (mine + other)).sum()) < 29.9
