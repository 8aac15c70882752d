"""Incremental segmentation: early, complete, and the same however the text is split into tokens."""

from __future__ import annotations

import pytest
from cpu_time import cpu_seconds
from hypothesis import given
from hypothesis import strategies as st

from nightingale.engine.requests.incremental_text import IncrementalSegmenter
from nightingale.errors import ConfigError
from nightingale.text.stops import LINK, LOOKAHEAD_CHARS

ANSWER = (
    "Of course, I can help you with that, and gladly! The value of pi is 3.14159, as Dr. Smith wrote at "
    "https://example.com/pi?digits=5. Is there anything else you would like to know? [laugh] Just ask me.\n\n"
    "Here is a list:\n- the first thing to remember\n- the second thing to remember\nThat is all for today."
)
SEGMENTS = [
    "Of course, I can help you with that,",
    " and gladly! The value of pi is 3.14159, as Dr. Smith wrote at https://example.com/pi?digits=5.",
    " Is there anything else you would like to know?",
    " [laugh] Just ask me.\n\nHere is a list:\n- the first thing to remember\n- the second thing to remember",
    "\nThat is all for today.",
]


def segments(tokens: list[str], **options: int) -> list[str]:
    segmenter = IncrementalSegmenter(**options)
    return [segment for token in tokens for segment in segmenter.push(token)] + segmenter.end()


def tokens_of(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 11, 20, 50, 1000])
def test_segments_do_not_depend_on_the_tokens(size: int) -> None:
    assert segments(tokens_of(ANSWER, size)) == SEGMENTS
    assert "".join(SEGMENTS) == ANSWER


WORDS = st.lists(
    st.sampled_from(
        ["Dr.", "3.", "14", "e.g.", "I.", "so", "word,", "End.", "Really?!", '"Yes."', "well…", "one;", "—",
         " - ", "[laugh]", "[pause: 1s]", "[", "]", "\n\n", "\n", "今天。", "公园、", "a-", "It",
         ".", " ", " ", " ", "[see. So", "](http://a.b/c", ")", '"']
    ),
    max_size=80,
).map("".join)  # fmt: skip


@given(
    st.one_of(WORDS, st.text(alphabet="abAB .,;:!?…\"'()-—\n1[]今。、」", max_size=300)),
    st.lists(st.integers(1, 12), min_size=1, max_size=40),
    st.integers(30, 120),
)
def test_no_text_is_lost(text: str, sizes: list[int], max_chars: int) -> None:
    tokens, at = [], 0
    while at < len(text):
        size = sizes[len(tokens) % len(sizes)]
        tokens.append(text[at : at + size])
        at += size
    found = segments(tokens, max_chars=max_chars)
    joined = "".join(found)
    assert text.startswith(joined)
    assert not any(map(str.isalnum, text[len(joined) :]))
    assert all(any(map(str.isalnum, segment)) for segment in found)
    for segment in found:
        if LINK.search(segment):
            continue  # longer than its spoken label
        first = next(at for at, character in enumerate(segment) if character.isalnum())
        assert len(segment[first:].rstrip()) <= max_chars
    assert found == segments([text], max_chars=max_chars), "segments depend on the tokens"


def test_the_first_segment_is_a_clause_and_later_ones_are_sentences() -> None:
    segmenter = IncrementalSegmenter()
    assert segmenter.push("Well, to begin with the weather,") == []
    assert segmenter.push(" it") == ["Well, to begin with the weather,"]
    assert segmenter.push(" will rain in the morning, as far as we know, and then stop.") == []
    assert segmenter.push(" Then") == [" it will rain in the morning, as far as we know, and then stop."]


def test_short_sentences_are_joined() -> None:
    text = "Sure! Yes. I will see to it at once."
    assert segments(["Sure! ", "Yes. ", "I will see to it at once."]) == [text]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("The value of the number pi is 3.", "14 or so."),
        ("It was all written down by Dr.", " Smith."),
        ("You will find the whole of it at example.", "com today."),
        ("The population of the city was 1,", "000,000 then."),
        ('"Are you quite sure about that?"', " he asked."),
        ("They met in the evening at exactly 10:", "30 sharp."),
        ("She thought about it for a while.", ".. and left."),
        ("And then he had to laugh out [clear", " throat] loud."),
        ("And then a pause that was long [pause:", " 1s] indeed."),
    ],
)
def test_text_that_may_still_change_is_held_back(before: str, after: str) -> None:
    segmenter = IncrementalSegmenter()
    assert segmenter.push(before) == []
    assert segmenter.push(after) == []
    assert segmenter.end() == [before + after]


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    "link",
    [
        "[the docs. Really](http://x.com/a.b)",
        "[the docs, all of them](http://x.com/a.b)",
        '[the docs](http://x.com "They are good. Really")',
        "[the docs. Really](https://en.wikipedia.org/wiki/Doc_(a)?b[]=1)",
        f"[the docs. Really](http://x.com/{'a' * 400})",
    ],
)
def test_a_link_is_never_split(link: str, size: int) -> None:
    text = f"You will find it in {link} if you look. Then you will know all about it."
    assert segments(tokens_of(text, size)) == [
        f"You will find it in {link} if you look.",
        " Then you will know all about it.",
    ]


def test_a_link_longer_than_a_segment_stays_whole() -> None:
    link = f"[the docs. Really](http://x.com/{'a' * 400})"
    found = segments(tokens_of("many words and " * 20 + link + " and so on" * 40, 5), max_chars=60)
    assert sum(link in segment for segment in found) == 1


def test_an_unclosed_bracket_does_not_block_the_text() -> None:
    segmenter = IncrementalSegmenter()
    assert segmenter.push("This is [ not a link. It is only a bracket.") == []
    assert segmenter.push(" It is never closed." * 15)[0] == "This is [ not a link."
    closed = IncrementalSegmenter().push("This is [not] a link at all. It is only a bracket.")
    assert closed == ["This is [not] a link at all."]


def test_flush_returns_everything_and_the_next_segment_may_be_a_clause() -> None:
    segmenter = IncrementalSegmenter()
    assert segmenter.push("Hi") == []
    assert segmenter.flush() == ["Hi"]
    assert segmenter.flush() == []
    assert segmenter.push(" there, this is a new beginning, and more") == [" there, this is a new beginning,"]
    assert segmenter.push("\n") == []
    assert segmenter.end() == [" and more\n"]
    assert segmenter.end() == []


def test_text_without_words_is_never_a_segment() -> None:
    segmenter = IncrementalSegmenter()
    assert segmenter.push(" \n...") == []
    assert segmenter.flush() == []
    assert segmenter.push(" Hello.") == []
    assert segmenter.end() == [" \n... Hello."]
    assert segments(["?!", "\n"]) == []


def test_a_sentence_without_an_end_is_split_at_its_best_mark() -> None:
    clause = "and so the story of the little house by the river went on and on without an end"
    found = segments(tokens_of(f"{clause}; {clause}, " * 10, 6), max_chars=200)
    assert "".join(found) == f"{clause}; {clause}, " * 10
    assert all(segment.rstrip().endswith((";", ",")) for segment in found)
    assert max(map(len, found)) <= 202


def test_a_sentence_longer_than_a_segment_is_split_though_its_end_is_known() -> None:
    clause = "and so the story of the little house by the river went on without an end"
    assert segments([f"{clause} and {clause}. Then it went on."], max_chars=100) == [
        f"{clause} and and so the story of the",
        " little house by the river went on without an end.",
        " Then it went on.",
    ]


def test_a_sentence_without_an_end_is_split_after_a_bounded_lookahead() -> None:
    segmenter = IncrementalSegmenter(max_chars=60)
    words = "word " * 100
    ready = [number for number, character in enumerate(words, start=1) if segmenter.push(character)]
    assert ready[:3] == [60 + LOOKAHEAD_CHARS, 120 + LOOKAHEAD_CHARS, 180 + LOOKAHEAD_CHARS]


def test_a_sentence_of_exactly_the_longest_segment_is_not_split() -> None:
    sentence = "The end of this sentence is exactly here."
    assert IncrementalSegmenter(max_chars=len(sentence)).push(sentence + " And") == [sentence]
    assert segments([sentence + " And"], max_chars=len(sentence) - 1)[0] != sentence


def test_the_first_clause_has_a_minimum_length_and_ends_outside_tags() -> None:
    assert IncrementalSegmenter().push("12345678 1234567890, and") == ["12345678 1234567890,"]
    assert IncrementalSegmenter().push("12345678 123456789, and") == []
    tagged = "This one has [a tag, and] more text,"
    assert IncrementalSegmenter().push(tagged + " so") == [tagged]
    assert IncrementalSegmenter().push("This one has [a] tag, and so") == ["This one has [a] tag,"]


def test_push_after_the_end_is_refused() -> None:
    segmenter = IncrementalSegmenter()
    segmenter.end()
    with pytest.raises(ConfigError, match="ended already"):
        segmenter.push("more")


HARD_TO_SPLIT = ["- ", "C![①", "[", "1,", "Dr. ", " ", "\n ", "今", "[a](b)", "<?xml"]


def push_cpu_s(text: str, size: int) -> float:
    """Return the CPU time of one text in parts of this size."""
    parts = tokens_of(text, size)
    return cpu_seconds(lambda: segments(parts), rounds=2)


@pytest.mark.parametrize("size", [1, 2048])
@pytest.mark.parametrize("unit", HARD_TO_SPLIT)
def test_the_cost_of_a_character_does_not_grow_with_the_text(unit: str, size: int) -> None:
    """Four times the text may cost twelve times as much. Quadratic growth is 16 times as much."""
    text = ("Well " + unit * 32_000)[:32_000]
    base_s = max(0.004, push_cpu_s(text[:8000], size))
    assert push_cpu_s(text, size) < 12 * base_s


@given(
    st.lists(st.sampled_from(HARD_TO_SPLIT), max_size=40).map("".join),
    st.lists(st.sampled_from([*HARD_TO_SPLIT, "End. ", "well, "]), max_size=40).map("".join),
    st.integers(1, 30),
)
def test_segments_of_hard_texts_do_not_depend_on_the_tokens(begin: str, rest: str, size: int) -> None:
    text = f"{begin} so {rest}"
    assert segments(tokens_of(text, size)) == segments([text])
