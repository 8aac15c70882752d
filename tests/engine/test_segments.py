"""Segmentation of a request's text: segments, pauses between them, their queue, token budgets and seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from nightingale.decoding.decoding import MIN_BUDGET_TOKENS, token_budget
from nightingale.decoding.philox import SEED_LIMIT, nth_seed
from nightingale.engine.requests.segments import (
    MAX_CHARS,
    PAUSE_MS,
    SegmentQueue,
    TextSegment,
    parse_pauses,
    segment_text,
)
from nightingale.errors import EmptyText, TextError, TextTooLong, UnsupportedLanguage
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.text.frontend import Frontend
from nightingale.text.languages import check_language
from nightingale.text.sentences import Ending

FIRST, SECOND = "The first sentence is this one.", "The second is longer, and has a comma in it."
BOOK = f"{FIRST} {SECOND}\n\n" * 1500


class ByteTokenizer:
    """A tokenizer of bytes for English only, which counts its calls."""

    vocab_size = 256

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, text: str, language: str | None = None) -> list[int]:
        self.calls += 1
        if language is not None:
            check_language(language, ("en",))
        return list(text.encode())


FRONTEND = Frontend(tokenizer=ByteTokenizer())


def segments(text: str, split_chars: int | None = 220, fill: bool = False) -> list[tuple[str, int]]:
    """Return the text of each segment and the milliseconds of silence after it."""
    found = list(segment_text(FRONTEND, text, None, split_chars=split_chars, fill=fill))
    assert all(bytes(segment.text_ids).decode() == segment.text for segment in found)
    return [(segment.text, segment.pause_samples // 24) for segment in found]


def test_text_is_one_segment_if_it_may_not_be_split() -> None:
    assert segments(f"{FIRST} {SECOND}", split_chars=None) == [(f"{FIRST} {SECOND}", 0)]


def test_pause_after_a_sentence_is_longer_than_after_a_clause() -> None:
    assert segments(f"{FIRST} {SECOND}", split_chars=32) == [
        (FIRST, 120),
        ("The second is longer,", 60),
        ("and has a comma in it.", 0),
    ]
    (first, *_) = segment_text(FRONTEND, f"{FIRST} {SECOND}", None, split_chars=32)
    assert first.pause_samples == 2880
    assert PAUSE_MS[Ending.PARAGRAPH] > PAUSE_MS[Ending.SENTENCE] > PAUSE_MS[Ending.CLAUSE] > 0


def test_text_is_normalized_before_it_is_split() -> None:
    frontend = replace(FRONTEND, spell_out=lambda text: text.replace("No. 5", "number five"))
    (segment,) = segment_text(frontend, "She lives at No. 5 Elm Street, I think.", None, split_chars=220)
    assert b"number five" in bytes(segment.text_ids)


@pytest.mark.parametrize(
    ("text", "language", "error"),
    [
        ("?!", None, EmptyText),
        ("… " * 50_000, None, EmptyText),
        (BOOK, "xx", UnsupportedLanguage),
        (f"{BOOK} [pause:60s] The end.", None, TextError),
        ("a" * (MAX_CHARS + 1), None, TextTooLong),
    ],
    ids=["marks", "many marks", "language", "a pause on the last page", "length"],
)
def test_bad_text_is_refused_before_the_first_segment_is_taken(
    text: str, language: str | None, error: type[TextError]
) -> None:
    with pytest.raises(error):
        segment_text(FRONTEND, text, language, split_chars=220)


def test_long_text_is_segmented_lazily() -> None:
    tokenizer = ByteTokenizer()
    found = segment_text(Frontend(tokenizer=tokenizer), BOOK, "en", split_chars=220)
    for _ in range(10):
        next(found)
    assert tokenizer.calls <= 12
    assert sum(1 for _ in found) == 3000 - 10


def test_the_length_limit_can_be_set() -> None:
    with pytest.raises(TextTooLong, match=r"12 characters; allowed: at most 11.*max_chars"):
        segment_text(FRONTEND, "Hello there.", None, split_chars=220, max_chars=11)
    assert len(list(segment_text(FRONTEND, "Hello there.", None, split_chars=220, max_chars=12))) == 1


@pytest.mark.parametrize("fill", [False, True])
def test_a_segment_of_too_many_ids_is_split_further(fill: bool) -> None:
    text = "Look 😀 " + "😀😀 a " * 40 + "here."
    found = list(segment_text(FRONTEND, text, None, split_chars=280, fill=fill, max_ids=100))
    assert len(found) > 3
    assert all(len(segment.text_ids) <= 100 for segment in found)
    letters = "".join(filter(str.isalnum, "".join(segment.text for segment in found)))
    assert letters == "".join(filter(str.isalnum, text))
    assert found[-1].pause_samples == 0
    (whole,) = segment_text(FRONTEND, text, None, split_chars=280, fill=fill)
    assert len(whole.text_ids) > 300
    (exact,) = segment_text(FRONTEND, FIRST, None, split_chars=280, fill=fill, max_ids=len(FIRST))
    assert exact.text == FIRST
    (character,) = segment_text(FRONTEND, "今", None, split_chars=280, fill=fill, max_ids=2)
    assert character.text == "今", "a single character cannot be split"


def test_pause_after_a_paragraph_is_the_longest() -> None:
    assert segments(f"Chapter one\n\n{FIRST} {SECOND}\n\nThe end") == [
        ("Chapter one", 300),
        (FIRST, 120),
        (SECOND, 300),
        ("The end", 0),
    ]


def test_a_sentence_that_continues_in_the_next_segment_gets_a_comma() -> None:
    assert segments("one two three four five six seven eight", 30) == [
        ("one two three four,", 60),
        ("five six seven eight", 0),
    ]


def test_text_that_fits_one_filled_segment_stays_as_written() -> None:
    text = f" {FIRST}  {SECOND}\n\nThe end."
    assert segments(text, 280, fill=True) == segments(text, len(text), fill=True) == [(text, 0)]
    assert [pause for _, pause in segments(f"{FIRST} " * 20, 280, fill=True)] == [120, 120, 0]
    assert len(segments(f"{FIRST} " * 20, 280)) == 20


def test_an_endless_source_is_read_lazily() -> None:
    parts_read = 0

    def book() -> Iterator[str]:
        nonlocal parts_read
        while True:
            parts_read += 1
            yield f"{FIRST} {SECOND}\n\n"

    found = segment_text(FRONTEND, book(), None, split_chars=220)
    assert [next(found).text for _ in range(4)] == [FIRST, SECOND] * 2
    assert parts_read < 100


def test_segments_do_not_depend_on_the_parts_of_the_source() -> None:
    text = f"{FIRST} {SECOND}\nand more of it, [pause:1s] and more.\n\n" * 40
    lines = text.splitlines(keepends=True)
    for split_chars in (220, None):
        whole = list(segment_text(FRONTEND, text, None, split_chars=split_chars))
        assert list(segment_text(FRONTEND, lines, None, split_chars=split_chars)) == whole


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("one [pause:500ms] two", ["one ", 500, " two"]),
        ("[pause:1s]", [1000]),
        ("[pause:1.25s][pause: 10 MS ]x", [1250, 10, "x"]),
        ("[Pause:0ms]a", [0, "a"]),
        ("a[pause:10s]", ["a", 10_000]),
        ("", []),
        ("no tag", ["no tag"]),
    ],
)
def test_pause_tags_are_parsed(text: str, parts: list[str | int]) -> None:
    assert parse_pauses(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "[pause]", "[pause 500ms]", "(pause:500ms)", "[pause:500ms", "pause:500ms]", "[laugh]", "[clear throat]",
    ],
)  # fmt: skip
def test_a_tag_that_is_not_a_pause_stays_text(text: str) -> None:
    assert parse_pauses(f"a {text} b") == [f"a {text} b"]


@pytest.mark.parametrize(
    "tag",
    [
        "[pause:]", "[pause:500]", "[pause:-5ms]", "[pause:1m]", "[pause:1e3ms]", "[pause:.5s]", "[pause:1..5s]",
        "[pause:٥s]", "[pause:5000000s]", "[pause:10001ms]", "[[pause:x]]",
    ],
)  # fmt: skip
def test_a_pause_outside_its_range_is_an_error_and_not_read_aloud(tag: str) -> None:
    with pytest.raises(TextError, match="a pause"):
        segment_text(FRONTEND, f"One {tag} two.", None, split_chars=220)


def test_pause_tags_replace_natural_pauses() -> None:
    assert segments("To begin with [pause:500ms] this. [pause:1s][pause:500ms] And [pause:0ms] that") == [
        ("To begin with,", 500),
        ("this.", 1500),
        ("And,", 0),
        ("that", 0),
    ]


@pytest.mark.parametrize("split_chars", [None, 220])
def test_a_pause_tag_ends_a_segment_whether_or_not_text_is_split(split_chars: int | None) -> None:
    assert segments(f"{FIRST} [pause:2s] {SECOND}", split_chars) == [(FIRST, 2000), (SECOND, 0)]


def test_speed_scales_natural_pauses_only() -> None:
    text = f"{FIRST} {SECOND} [pause:500ms] The end."
    for speed, pauses_ms in ((0.5, [240, 500, 0]), (1.0, [120, 500, 0]), (2.0, [60, 500, 0])):
        found = segment_text(FRONTEND, text, None, split_chars=220, speed=speed)
        assert [segment.pause_samples // 24 for segment in found] == pauses_ms


def test_the_closing_pause_follows_the_last_segment_unless_a_tag_sets_it() -> None:
    for text, pauses_ms in ((f"{FIRST} {SECOND}", [60, 250]), (f"{FIRST} [pause:1s]", [1000])):
        found = segment_text(FRONTEND, text, None, split_chars=220, speed=2.0, closing_ms=250)
        assert [segment.pause_samples // 24 for segment in found] == pauses_ms


def test_a_request_may_begin_and_end_with_a_pause() -> None:
    assert segments("[pause:1s] Hello there. [pause:250ms]\n") == [("", 1000), ("Hello there.", 250)]
    assert segments("And then [pause:1s]") == [("And then,", 1000)]


@pytest.mark.parametrize("split_chars", [None, 220])
def test_hours_of_silence_are_split(split_chars: int | None) -> None:
    found = segments("[pause:4s]" * 3 + "One." + "[pause:10s]" * 2500 + "[pause:1ms] Two.", split_chars)
    assert found[:3] == [("", 10_000), ("", 2000), ("One.", 10_000)]
    assert found[3:-2] == [("", 10_000)] * 2499
    assert found[-2:] == [("", 1), ("Two.", 0)]


@pytest.mark.parametrize("split_chars", [None, 220])
def test_text_that_continues_ends_with_its_natural_pause(split_chars: int | None) -> None:
    def continued(text: str) -> list[tuple[str, int]]:
        found = segment_text(FRONTEND, text, None, split_chars=split_chars, continues=True)
        return [(segment.text.strip(), segment.pause_samples // 24) for segment in found]

    assert continued(FIRST) == [(FIRST, 120)]
    assert continued(" Well, to begin with,") == [("Well, to begin with,", 60)]
    assert continued("Hello, [pause:1s]") == [("Hello,", 1000)]
    assert continued("[pause:1s]") == [("", 1000)]
    assert continued(" ... ") == []


def test_text_of_pauses_only_is_refused() -> None:
    with pytest.raises(EmptyText, match=r"got '\[pause:1s\] \.\.\. \[paus'"):
        segments("[pause:1s] ... [pause:1s]")
    with pytest.raises(EmptyText, match="got text without a letter"):
        segment_text(FRONTEND, ["[pause:1s]", "..."], None, split_chars=220)


def test_a_pause_of_a_minute_is_refused() -> None:
    with pytest.raises(TextError, match=r"\[pause:60s\].*at most \[pause:10s\]"):
        segments("one [pause:60s] two")


@pytest.mark.parametrize("split_chars", [None, 60])
def test_tags_of_sounds_stay_in_the_text(split_chars: int | None) -> None:
    text = "That is so funny! [laugh] Oh, dear. [clear throat] Where were we? [pause:1s] [sigh] I see."
    assert " ".join(text for text, _ in segments(text, split_chars)) == text.replace("[pause:1s] ", "")


def test_a_queue_returns_the_segments_of_a_complete_text() -> None:
    first, second = (TextSegment(pause_samples=number) for number in (1, 2))
    queue = SegmentQueue(iter([first, second]))
    assert queue.closed
    assert queue.waiting
    assert queue.next() is first
    assert queue.next() is second
    assert queue.next() is None


def test_a_queue_is_filled_until_it_is_closed() -> None:
    segment = TextSegment(pause_samples=1)
    queue = SegmentQueue()
    assert (queue.next(), queue.waiting, queue.closed) == (None, False, False)
    queue.add(segment)
    assert queue.waiting
    assert queue.next() is segment
    assert not queue.waiting
    queue.closed = True
    assert (queue.next(), queue.waiting, queue.closed) == (None, True, True)


@pytest.mark.parametrize("text", [FIRST, f"  {FIRST}  ", "Hello\nthere, you.", "No. It is not."])
def test_a_short_first_segment_leaves_a_single_sentence_as_it_is_written(text: str) -> None:
    found = list(segment_text(FRONTEND, text, None, split_chars=280, fill=True, short_first=True))
    whole = list(segment_text(FRONTEND, text, None, split_chars=280, fill=True))
    assert found == whole
    assert len(found) == 1


def test_a_short_first_segment_is_a_sentence_with_its_pause() -> None:
    text = f"{FIRST} {SECOND} {FIRST}"
    found = list(segment_text(FRONTEND, text, None, split_chars=280, fill=True, short_first=True))
    assert [(s.text, s.pause_samples // 24) for s in found] == [(FIRST, 120), (f"{SECOND} {FIRST}", 0)]
    (whole,) = segment_text(FRONTEND, text, None, split_chars=280, fill=True)
    assert whole.text == text
    sentences = list(segment_text(FRONTEND, text, None, split_chars=280, short_first=True))
    assert [s.text for s in sentences] == [FIRST, SECOND, FIRST], "nothing grows that is not filled"


def test_a_book_has_few_segments_after_a_short_first_one() -> None:
    book = f"{FIRST} {SECOND} " * 500
    found = list(segment_text(FRONTEND, book, None, split_chars=280, fill=True, short_first=True))
    filled = list(segment_text(FRONTEND, book, None, split_chars=280, fill=True))
    assert found[0].text == FIRST
    assert len(found) <= len(filled) + 3


def test_only_wren_has_a_budget_by_text_ids() -> None:
    for name, defaults in MODEL_DEFAULTS.items():
        assert (defaults.tokens_per_text_id is not None) == (name == "wren")
    assert token_budget(5, MODEL_DEFAULTS["english"]) == 1000
    assert token_budget(5, MODEL_DEFAULTS["turbo"]) == 1001


def test_a_short_text_has_a_short_budget() -> None:
    wren = replace(MODEL_DEFAULTS["wren"], tokens_per_text_id=6.0, max_new_tokens=750)
    assert token_budget(2, wren) == MIN_BUDGET_TOKENS + 12
    assert token_budget(1000, wren) == 750


def test_each_segment_has_its_own_seed_and_the_first_the_seed_of_the_request() -> None:
    seeds = [nth_seed(7, number) for number in range(50)]
    assert seeds[:2] == [7, 4209573609]
    assert len(set(seeds)) == 50
    assert all(0 <= seed < SEED_LIMIT for seed in seeds)
    assert nth_seed(8, 1) != nth_seed(7, 1)
