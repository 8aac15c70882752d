"""The ids of a block depend on the ids alone, not on when they arrived: a seed must give the same audio."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from nightingale.backends.cuda.graph_renderer import CudaRenderStream
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS

BLOCKS, CONTEXT = (8, 16, 32, 64), 8


def cuts_of(total: int, rng: random.Random) -> list[tuple[int, bool]]:
    """Return the cuts of an utterance whose tokens arrive, and are asked for, at random times."""
    stream: Any = SimpleNamespace(blocks=BLOCKS, unrendered=0, started=False)
    arrived, waiting, wanted, finished, cuts = 0, 0, BLOCKS[0], False, []
    while not cuts or not cuts[-1][1]:
        fresh = min(total - arrived, rng.randrange(0, 40))
        arrived, waiting = arrived + fresh, waiting + fresh
        # The end is known with the last token, or a while after it.
        finished = finished or (arrived == total and rng.random() < 0.4)
        cut = CudaRenderStream.next_cut(stream, waiting, finished=finished, wanted=wanted)
        if cut is None:
            continue
        ids, final = cut
        assert 0 <= ids <= waiting
        size = stream.unrendered + ids - (0 if final else LOOKAHEAD_TOKENS)
        assert 0 <= size <= BLOCKS[-1], "larger than any graph"
        assert final or size in BLOCKS
        cuts.append(cut)
        waiting -= ids
        stream.unrendered, stream.started = 0 if final else LOOKAHEAD_TOKENS, True
        wanted = min(2 * wanted, BLOCKS[-1])
    assert waiting == 0
    assert sum(ids for ids, _ in cuts) == total
    return cuts


@pytest.mark.parametrize(
    "total", [0, 1, 7, 10, 11, 12, 27, 29, 60, 66, 67, 102, 123, 124, 125, 187, 190, 256]
)
def test_an_utterance_is_cut_the_same_however_its_tokens_arrive(total: int) -> None:
    rng = random.Random(total)
    expected = cuts_of(total, rng)
    assert all(cuts_of(total, rng) == expected for _ in range(60))


def test_the_first_block_is_the_smallest_and_the_next_ones_grow() -> None:
    cuts = cuts_of(250, random.Random(0))
    assert [ids for ids, _ in cuts[:4]] == [BLOCKS[0] + LOOKAHEAD_TOKENS, 16, 32, 64]
