"""A request in pieces: pauses between them, and a budget that no piece can outrun."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nightingale.engine.decode import BUDGET_FLOOR_TOKENS, budget_tokens
from nightingale.engine.habits import HABITS
from nightingale.engine.pieces import cut
from nightingale.engine.randomness import SEED_LIMIT, nth_seed
from nightingale.errors import EmptyText, TextTooLong
from nightingale.text.frontend import Frontend

FIRST, SECOND = "The first sentence is this one.", "The second is longer, and has a comma in it."


class Letters:
    vocab_size = 256

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return list(text.encode())


FRONTEND = Frontend(tokenizer=Letters())


def test_without_splitting_the_text_is_one_piece() -> None:
    (piece,) = cut(FRONTEND, f"{FIRST} {SECOND}", None, split_chars=None)
    assert bytes(piece.text_ids).decode() == f"{FIRST} {SECOND}"
    assert piece.pause_samples == 0


def test_a_sentence_is_followed_by_a_longer_pause_than_a_clause() -> None:
    pieces = cut(FRONTEND, f"{FIRST} {SECOND}", None, split_chars=32)
    assert [bytes(p.text_ids).decode() for p in pieces] == [
        FIRST,
        "The second is longer,",
        "and has a comma in it.",
    ]
    assert [p.pause_samples for p in pieces] == [2880, 1440, 0]


def test_text_is_written_out_before_it_is_cut() -> None:
    spoken = Frontend(tokenizer=Letters(), spell_out=lambda text: text.replace("No. 5", "number five"))
    (piece,) = cut(spoken, "She lives at No. 5 Elm Street, I think.", None, split_chars=220)
    assert b"number five" in bytes(piece.text_ids)


def test_what_cannot_be_spoken_is_refused_before_it_is_cut() -> None:
    with pytest.raises(EmptyText):
        cut(FRONTEND, "?!", None, split_chars=220)
    with pytest.raises(TextTooLong):
        cut(FRONTEND, "a" * 10_001, None, split_chars=220)


def test_only_wren_is_split_and_budgeted() -> None:
    """The official families speak the whole text with upstream's limit of 1000 tokens."""
    for name, habits in HABITS.items():
        assert (habits.split_chars is not None) == (name == "wren")
        assert (habits.tokens_per_text_id is not None) == (name == "wren")
    assert budget_tokens(5, HABITS["english"]) == 1000
    assert budget_tokens(5, HABITS["turbo"]) == 1001


def test_a_short_text_cannot_run_on() -> None:
    wren = replace(HABITS["wren"], tokens_per_text_id=6.0, max_new_tokens=750)
    assert budget_tokens(2, wren) == BUDGET_FLOOR_TOKENS + 12
    assert budget_tokens(1000, wren) == 750


def test_each_piece_has_a_seed_of_its_own_and_the_first_has_the_requests() -> None:
    seeds = [nth_seed(7, piece) for piece in range(50)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 50
    assert all(0 <= seed < SEED_LIMIT for seed in seeds)
    assert nth_seed(8, 1) != nth_seed(7, 1)
