"""Text in as it is written: early, whole, and cut alike however it was torn into tokens."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightingale.engine.requests.incremental_text import IncomingText
from nightingale.errors import ConfigError
from nightingale.text.stops import LINK

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


def heard(tokens: list[str], **options: int) -> list[str]:
    incoming = IncomingText(**options)
    return [segment for token in tokens for segment in incoming.push(token)] + incoming.end()


def torn(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 11, 20, 50, 1000])
def test_the_segments_do_not_depend_on_the_tokens(size: int) -> None:
    assert heard(torn(ANSWER, size)) == SEGMENTS
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
def test_nothing_is_lost_whatever_the_text_and_its_tokens(text: str, sizes: list[int], most: int) -> None:
    tokens, at = [], 0
    while at < len(text):
        size = sizes[len(tokens) % len(sizes)]
        tokens.append(text[at : at + size])
        at += size
    segments = heard(tokens, max_chars=most)
    joined = "".join(segments)
    assert text.startswith(joined)
    assert not any(map(str.isalnum, text[len(joined) :]))
    assert all(any(map(str.isalnum, segment)) for segment in segments)
    for segment in segments:
        if LINK.search(segment):
            continue  # longer than it is to say
        first = next(at for at, character in enumerate(segment) if character.isalnum())
        assert len(segment[first:].rstrip()) <= most
    assert segments == heard([text], max_chars=most), "torn or whole, the text is cut alike"


def test_the_first_segment_is_a_clause_and_the_next_are_sentences() -> None:
    incoming = IncomingText()
    assert incoming.push("Well, to begin with the weather,") == []
    assert incoming.push(" it") == ["Well, to begin with the weather,"]
    assert incoming.push(" will rain in the morning, as far as we know, and then stop.") == []
    assert incoming.push(" Then") == [" it will rain in the morning, as far as we know, and then stop."]


def test_a_short_exclamation_waits_for_company() -> None:
    assert heard(["Sure! ", "Yes. ", "I will see to it at once."]) == ["Sure! Yes. I will see to it at once."]


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
def test_what_could_still_change_is_kept_back(before: str, after: str) -> None:
    incoming = IncomingText()
    assert incoming.push(before) == []
    assert incoming.push(after) == []
    assert incoming.end() == [before + after]


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
def test_a_link_is_never_torn(link: str, size: int) -> None:
    text = f"You will find it in {link} if you look. Then you will know all about it."
    assert heard(torn(text, size)) == [
        f"You will find it in {link} if you look.",
        " Then you will know all about it.",
    ]


def test_a_link_longer_than_a_breath_is_a_segment() -> None:
    link = f"[the docs. Really](http://x.com/{'a' * 400})"
    segments = heard(torn("many words and " * 20 + link + " and so on" * 40, 5), max_chars=60)
    assert sum(link in segment for segment in segments) == 1


def test_a_lone_bracket_does_not_hold_the_text_for_ever() -> None:
    incoming = IncomingText()
    assert incoming.push("This is [ not a link. It is only a bracket.") == []
    assert incoming.push(" It is never closed." * 15) != []
    assert IncomingText().push("This is [not] a link at all. It is only a bracket.") != []


def test_a_flush_forces_what_there_is_and_begins_anew() -> None:
    incoming = IncomingText()
    assert incoming.push("Hi") == []
    assert incoming.flush() == ["Hi"]
    assert incoming.flush() == []
    assert incoming.push(" there, this is a new beginning, and more") == [" there, this is a new beginning,"]
    assert incoming.push("\n") == []
    assert incoming.end() == [" and more\n"]
    assert incoming.end() == []


def test_what_says_nothing_is_never_a_segment() -> None:
    incoming = IncomingText()
    assert incoming.push(" \n...") == []
    assert incoming.flush() == []
    assert incoming.push(" Hello.") == []
    assert incoming.end() == [" \n... Hello."]
    assert heard(["?!", "\n"]) == []


def test_a_sentence_without_an_end_is_cut_at_its_best_mark() -> None:
    clause = "and so the story of the little house by the river went on and on without an end"
    segments = heard(torn(f"{clause}; {clause}, " * 10, 6), max_chars=200)
    assert "".join(segments) == f"{clause}; {clause}, " * 10
    assert all(segment.rstrip().endswith((";", ",")) for segment in segments)
    assert max(map(len, segments)) <= 202


def test_after_the_end_no_more_text_is_taken() -> None:
    incoming = IncomingText()
    incoming.end()
    with pytest.raises(ConfigError, match="ended already"):
        incoming.push("more")


def test_a_token_costs_little_however_long_the_text() -> None:
    incoming = IncomingText()
    start_s = time.process_time()
    for number in range(10_000):
        incoming.push("word " if number % 60 else "end. ")
    assert time.process_time() - start_s < 3, "0.3 s on an idle machine"
