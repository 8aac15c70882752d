"""Long text in breaths: cut where a reader would pause, and nothing lost on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightingale.text.sentences import ends_sentence, split

FIRST = "The quick brown fox jumps over the lazy dog."
SECOND = "It was a bright cold day in April, and the clocks were striking."


@pytest.mark.parametrize(
    "sentences",
    [
        [FIRST, SECOND],
        ["Was it really the lazy dog?", "Nobody in the village knew!", FIRST],
        ["She paid 3.14 dollars for the round pie.", FIRST],
        ["Mr. Smith met Dr. Jones at St. Mary's on Monday.", FIRST],
        ["J. R. Tolkien wrote long books about rings.", SECOND],
        ["They moved to the U.S. in the spring of that year.", SECOND],
        ['"Are you really coming along?" he asked her.', SECOND],
        ['He said, "I will not come along today."', SECOND],
        ["Well... maybe we should not go there.", "Wait… something is moving over there."],
        ["Some of it (the better part, I think.)", SECOND],
        ["The file is called main.py and it is short.", FIRST],
        ["It was the older brother and I.", SECOND],
    ],
)
def test_a_sentence_is_a_piece(sentences: list[str]) -> None:
    assert split(" ".join(sentences), 220) == sentences


def test_short_sentences_join_their_neighbours() -> None:
    assert split("Hello. How are you?", 220) == ["Hello. How are you?"]
    assert split(f"No. {FIRST}", 220) == [f"No. {FIRST}"]
    assert split(f"{FIRST} Yes.", 220) == [f"{FIRST} Yes."]
    assert split(f"{FIRST} {SECOND}", 220) == [FIRST, SECOND]
    assert split(f"{FIRST} Yes.", len(FIRST)) == [FIRST, "Yes."]


def test_a_long_sentence_is_cut_at_its_best_mark() -> None:
    clause = "the ship went out to sea, and the gulls came after it"
    assert split(f"{clause}; {clause}.", 80) == [f"{clause};", f"{clause}."]
    assert split("one two three four five, six seven eight nine ten", 30) == [
        "one two three four five,",
        "six seven eight nine ten",
    ]


def test_a_cut_between_words_is_given_a_comma() -> None:
    pieces = split("word " * 50, 60)
    assert all(piece.endswith("word,") for piece in pieces[:-1])
    assert pieces[-1].endswith("word")
    assert min(map(len, pieces)) > 30, "parts of about equal length"


def test_text_in_small_letters_is_cut_after_its_full_stops() -> None:
    text = "this was typed in a hurry. nobody used the shift key. it goes on and on like that."
    assert split(text, 60) == [
        "this was typed in a hurry. nobody used the shift key.",
        "it goes on and on like that.",
    ]


def test_paragraphs_are_never_joined() -> None:
    assert split("Chapter one\n\nIt begins.\nIt goes on.", 220) == ["Chapter one", "It begins. It goes on."]


@pytest.mark.parametrize("text", ["", "  \n", "...", '"!?"', "- -"])
def test_without_a_letter_there_is_no_piece(text: str) -> None:
    assert split(text, 220) == []


def test_ten_thousand_letters_without_a_space_are_cut_all_the_same() -> None:
    pieces = split("a" * 10_000, 220)
    assert "".join(pieces).replace(",", "") == "a" * 10_000
    assert max(map(len, pieces)) <= 221


@given(st.text(alphabet="abAB .,;:!?…\"'()-\n1", max_size=400), st.integers(8, 80))
def test_no_letter_is_lost_no_piece_is_long_and_each_has_something_to_say(text: str, max_chars: int) -> None:
    pieces = split(text, max_chars)
    letters = [c for piece in pieces for c in piece if c.isalnum()]
    assert letters == [c for c in text if c.isalnum()]
    assert all(len(piece) <= max_chars + 1 for piece in pieces)
    assert all(any(c.isalnum() for c in piece) for piece in pieces)


def test_the_voice_falls_at_the_end_of_a_sentence_only() -> None:
    assert ends_sentence('He said "no."')
    assert ends_sentence("Really?")
    assert not ends_sentence("to begin with,")
    assert not ends_sentence("word")
