"""Text with spans: every change keeps which characters of the original each of its characters came from."""

from __future__ import annotations

import re
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from nightingale.text.english import read
from nightingale.text.normalized_text import Edit, Match, NormalizedText, fill_groups
from nightingale.text.source_words import read_spans

LETTERS = st.text(st.sampled_from("ab .-1é"), max_size=12)


def origins(text: NormalizedText) -> list[str]:
    """Return what each character came from."""
    spans = (text.source_span(at, at + 1) for at in range(len(text)))
    return [text.original[start:end] for start, end in spans]


def test_a_replaced_text_came_from_what_it_replaces_and_the_rest_from_itself() -> None:
    text = NormalizedText.of("a 5% b").sub(re.compile(r"(\d)%"), lambda match: "five percent")
    assert text == "a five percent b"
    assert origins(text) == ["a", " ", *["5%"] * 12, " ", "b"]
    assert text.original == "a 5% b"


def test_an_inserted_text_and_space_around_words_came_from_nothing() -> None:
    text = NormalizedText.of("x=y").edit([(0, 0, "so "), (1, 2, " is ")])
    assert text == "so x is y"
    assert origins(text) == ["", "", "", "x", "", "=", "=", "", "y"]


def test_changes_are_followed_back_one_after_the_other() -> None:
    text = NormalizedText.of("ab cd").sub(re.compile("b"), "xyz").sub(re.compile("yz c"), "-")
    assert text == "ax-d"
    assert [text.source_span(at, at + 1) for at in range(4)] == [(0, 1), (1, 2), (1, 4), (4, 5)]
    assert text.source_span(0, 4) == (0, 5)
    assert origins(text.cut(2, 4)) == ["b c", "d"]


def test_a_replacement_that_is_equal_changes_no_span() -> None:
    text = NormalizedText.of("one two")
    assert text.sub(re.compile(r"\w+ \w+"), lambda match: match[0]) is text
    assert text.strip() is text


def test_groups_keep_their_places_and_what_is_left_out_belongs_to_the_part_before_it() -> None:
    def read_time(match: Match) -> str:
        return fill_groups(match, [("hour", "fourteen"), (None, " hundred and "), ("minute", "five")])

    pattern = re.compile(r"(?P<hour>\d+):(?P<minute>\d+) o'clock")
    text = NormalizedText.of("14:05 o'clock").sub(pattern, read_time)
    assert text == "fourteen hundred and five"
    assert dict.fromkeys(origins(text)) == dict.fromkeys(["14", "", ":", "05 o'clock"])


def test_groups_in_another_order_are_one_change() -> None:
    text = NormalizedText.of("USD 5").sub(
        re.compile(r"(\w+) (\d)"),
        lambda match: fill_groups(match, [(2, "five"), (None, " "), (1, "dollars")]),
    )
    assert text == "five dollars"
    assert set(origins(text)) == {"USD 5"}


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(LETTERS, st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4), LETTERS), max_size=6))
def test_characters_that_no_edit_touches_keep_their_place(
    written: str, changes: list[tuple[int, int, str]]
) -> None:
    text = NormalizedText.of(written)
    kept: list[int | None] = list(range(len(written)))
    for start, chars, said in changes:
        start = min(start, len(text))
        end = min(start + chars, len(text))
        edit: Edit = (start, end, said)
        text = text.edit([edit])
        kept[start:end] = [None] * len(said)
    assert len(text) == len(kept)
    for at, source in enumerate(kept):
        start, end = text.source_span(at, at + 1)
        assert 0 <= start <= end <= len(written)
        if source is not None:
            assert (start, end) == (source, source + 1)


def test_the_spans_of_a_long_text_take_less_time_than_its_normalization() -> None:
    text = (
        "On May 5, 2024 he paid $5.50 (10% more) for 3 kg. Then the quick brown fox jumped over it. " * 110
    )[:10_000]
    start_s = time.thread_time()
    spoken = read(text)
    normalized_s = time.thread_time() - start_s
    spans = read_spans(spoken)
    assert time.thread_time() - start_s < 2 * normalized_s + 0.1
    assert len(spans) > 1500
