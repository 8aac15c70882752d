"""Which ids make a block is decided by the ids, and not by when they came: else a seed were not a sound."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from nightingale.backends.cuda.renderer import BlockRenderer
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS

BLOCKS, CONTEXT = (8, 16, 32, 64), 8


def cuts_of(total: int, rng: random.Random) -> list[tuple[int, bool]]:
    """How an utterance of so many tokens is cut, if they come and are asked for at random."""
    renderer: Any = SimpleNamespace(blocks=BLOCKS)
    spoken: Any = SimpleNamespace(unrendered=0, rendered=False)
    come, waiting, wanted, finished, cuts = 0, 0, BLOCKS[0], False, []
    while not cuts or not cuts[-1][1]:
        fresh = min(total - come, rng.randrange(0, 40))
        come, waiting = come + fresh, waiting + fresh
        # The end is known with the last token, or a while after it.
        finished = finished or (come == total and rng.random() < 0.4)
        cut = BlockRenderer.cut(renderer, spoken, waiting, finished=finished, wanted=wanted)
        if cut is None:
            continue
        ids, final = cut
        assert 0 <= ids <= waiting
        size = spoken.unrendered + ids - (0 if final else LOOKAHEAD_TOKENS)
        assert 0 <= size <= BLOCKS[-1], "a piece larger than any graph"
        assert final or size in BLOCKS
        cuts.append(cut)
        waiting -= ids
        spoken = SimpleNamespace(unrendered=0 if final else LOOKAHEAD_TOKENS, rendered=True)
        wanted = min(2 * wanted, BLOCKS[-1])
    assert waiting == 0
    assert sum(ids for ids, _ in cuts) == total
    return cuts


@pytest.mark.parametrize(
    "total", [0, 1, 7, 10, 11, 12, 27, 29, 60, 66, 67, 102, 123, 124, 125, 187, 190, 256]
)
def test_an_utterance_is_cut_the_same_however_its_tokens_come(total: int) -> None:
    rng = random.Random(total)
    expected = cuts_of(total, rng)
    assert all(cuts_of(total, rng) == expected for _ in range(60))


def test_the_first_block_is_the_smallest_and_the_next_ones_grow() -> None:
    cuts = cuts_of(250, random.Random(0))
    assert [ids for ids, _ in cuts[:4]] == [BLOCKS[0] + LOOKAHEAD_TOKENS, 16, 32, 64]
