"""A request in pieces: pauses between them, and a budget that no piece can outrun."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from nightingale.decoding.decoding import BUDGET_FLOOR_TOKENS, budget_tokens
from nightingale.decoding.seeds import SEED_LIMIT, nth_seed
from nightingale.engine.requests.segments import MAX_CHARS, cut, parse_pauses, pieces_of
from nightingale.errors import EmptyText, TextError, TextTooLong, UnsupportedLanguage
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.text.frontend import Frontend
from nightingale.text.languages import check_language

FIRST, SECOND = "The first sentence is this one.", "The second is longer, and has a comma in it."


class Letters:
    vocab_size = 256

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return list(text.encode())


FRONTEND = Frontend(tokenizer=Letters())


def pieces(text: str, split_chars: int | None = 220, fill: bool = False) -> list[tuple[str, int]]:
    """What is spoken, and the milliseconds of silence after it."""
    found = list(cut(FRONTEND, text, None, split_chars=split_chars, fill=fill))
    assert all(bytes(piece.text_ids).decode() == piece.text for piece in found)
    return [(piece.text, piece.pause_samples // 24) for piece in found]


def test_without_splitting_the_text_is_one_piece() -> None:
    (piece,) = cut(FRONTEND, f"{FIRST} {SECOND}", None, split_chars=None)
    assert bytes(piece.text_ids).decode() == f"{FIRST} {SECOND}"
    assert piece.pause_samples == 0


def test_a_sentence_is_followed_by_a_longer_pause_than_a_clause() -> None:
    pieces = list(cut(FRONTEND, f"{FIRST} {SECOND}", None, split_chars=32))
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


BOOK = f"{FIRST} {SECOND}\n\n" * 1500


class Strict(Letters):
    """Counts what it is asked, and speaks English."""

    asked = 0

    def encode(self, text: str, language: str | None = None) -> list[int]:
        self.asked += 1
        if language is not None:
            check_language(language, ("en",))
        return super().encode(text)


@pytest.mark.parametrize(
    ("text", "language", "refusal"),
    [
        ("?!", None, EmptyText),
        ("… " * 50_000, None, EmptyText),
        (BOOK, "xx", UnsupportedLanguage),
        (f"{BOOK} [pause:60s] The end.", None, TextError),
        ("a" * (MAX_CHARS + 1), None, TextTooLong),
    ],
    ids=["marks", "many marks", "language", "a pause on the last page", "length"],
)
def test_what_is_wrong_with_a_book_is_said_before_its_first_piece(
    text: str, language: str | None, refusal: type[TextError]
) -> None:
    frontend = Frontend(tokenizer=Strict())
    with pytest.raises(refusal):
        cut(frontend, text, language, split_chars=220)


def test_a_book_is_cut_while_it_is_spoken() -> None:
    tokenizer = Strict()
    pieces = cut(Frontend(tokenizer=tokenizer), BOOK, "en", split_chars=220)
    for _ in range(10):
        next(pieces)
    assert tokenizer.asked <= 12
    assert sum(1 for _ in pieces) == 3000 - 10


def test_the_limit_of_a_request_can_be_chosen() -> None:
    with pytest.raises(TextTooLong, match=r"12 characters; allowed: at most 11.*max_chars"):
        cut(FRONTEND, "Hello there.", None, split_chars=220, max_chars=11)
    assert list(cut(FRONTEND, "Hello there.", None, split_chars=220, max_chars=12))


@pytest.mark.parametrize("fill", [False, True])
def test_a_line_of_rare_signs_is_cut_until_it_fits_the_models_memory(fill: bool) -> None:
    text = "Look 😀 " + "😀😀 a " * 40 + "here."
    found = list(cut(FRONTEND, text, None, split_chars=280, fill=fill, max_ids=100))
    assert len(found) > 3
    assert all(len(piece.text_ids) <= 100 for piece in found)
    letters = "".join(filter(str.isalnum, "".join(piece.text for piece in found)))
    assert letters == "".join(filter(str.isalnum, text))
    assert found[-1].pause_samples == 0
    (whole,) = cut(FRONTEND, text, None, split_chars=280, fill=fill)
    assert len(whole.text_ids) > 300


def test_a_paragraph_is_followed_by_the_longest_pause() -> None:
    assert pieces(f"Chapter one\n\n{FIRST} {SECOND}\n\nThe end") == [
        ("Chapter one", 300),
        (FIRST, 120),
        (SECOND, 300),
        ("The end", 0),
    ]


def test_a_sentence_that_goes_on_in_the_next_piece_is_held_with_a_comma() -> None:
    assert pieces("one two three four five six seven eight", 30) == [
        ("one two three four,", 60),
        ("five six seven eight", 0),
    ]


def test_a_filled_breath_is_spoken_exactly_as_it_was_written() -> None:
    text = f" {FIRST}  {SECOND}\n\nThe end."
    assert pieces(text, 280, fill=True) == [(text, 0)]
    assert [pause for _, pause in pieces(f"{FIRST} " * 20, 280, fill=True)] == [120, 120, 0]
    assert len(pieces(f"{FIRST} " * 20, 280)) == 20


def test_the_pieces_of_a_book_are_made_as_they_are_asked_for() -> None:
    asked = 0

    def book() -> Iterator[str]:
        nonlocal asked
        while True:
            asked += 1
            yield f"{FIRST} {SECOND}\n\n"

    stream = pieces_of(FRONTEND, book(), None, split_chars=220)
    first = [next(stream).text for _ in range(4)]
    assert first == [FIRST, SECOND] * 2
    assert asked < 100


def test_a_book_gives_the_same_pieces_in_lines_as_in_one() -> None:
    text = f"{FIRST} {SECOND}\nand more of it, [pause:1s] and more.\n\n" * 40
    lines = text.splitlines(keepends=True)
    assert list(pieces_of(FRONTEND, lines, None, split_chars=220)) == list(
        pieces_of(FRONTEND, text, None, split_chars=220)
    )


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
def test_a_pause_is_read(text: str, parts: list[str | int]) -> None:
    assert parse_pauses(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "[pause]", "[pause:]", "[pause:500]", "[pause:-5ms]", "[pause:1m]", "[pause 500ms]", "(pause:500ms)",
        "[pause:500ms", "pause:500ms]", "[pause:1e3ms]", "[pause:.5s]", "[pause:1..5s]", "[pause:٥s]",
        "[pause:5000000s]", "[laugh]", "[clear throat]", "[[pause:x]]",
    ],
)  # fmt: skip
def test_what_is_not_quite_a_pause_stays_text(text: str) -> None:
    assert parse_pauses(f"a {text} b") == [f"a {text} b"]


def test_a_pause_is_heard_in_place_of_the_natural_one() -> None:
    assert pieces("To begin with [pause:500ms] this. [pause:1s][pause:500ms] And [pause:0ms] that") == [
        ("To begin with,", 500),
        ("this.", 1500),
        ("And,", 0),
        ("that", 0),
    ]


@pytest.mark.parametrize("split_chars", [None, 220])
def test_a_pause_cuts_whether_or_not_the_text_is_split(split_chars: int | None) -> None:
    assert [p for _, p in pieces(f"{FIRST} [pause:2s] {SECOND}", split_chars)] == [2000, 0]


def test_natural_pauses_follow_the_speed_and_those_asked_for_do_not() -> None:
    text = f"{FIRST} {SECOND} [pause:500ms] The end."
    for speed, pauses_ms in ((0.5, [240, 500, 0]), (1.0, [120, 500, 0]), (2.0, [60, 500, 0])):
        found = cut(FRONTEND, text, None, split_chars=220, speed=speed)
        assert [piece.pause_samples // 24 for piece in found] == pauses_ms


def test_a_pause_may_begin_and_end_a_request() -> None:
    assert pieces("[pause:1s] Hello there. [pause:250ms]\n") == [("", 1000), ("Hello there.", 250)]


@pytest.mark.parametrize("split_chars", [None, 220])
def test_hours_of_silence_come_in_parts(split_chars: int | None) -> None:
    found = pieces("[pause:4s]" * 3 + "One." + "[pause:10s]" * 2500 + "[pause:1ms] Two.", split_chars)
    assert found[:3] == [("", 10_000), ("", 2000), ("One.", 10_000)]
    assert found[3:-2] == [("", 10_000)] * 2499
    assert found[-2:] == [("", 1), ("Two.", 0)]


@pytest.mark.parametrize("split_chars", [None, 220])
def test_a_segment_that_others_follow_has_a_pause_after_it(split_chars: int | None) -> None:
    def segment(text: str) -> list[tuple[str, int]]:
        found = pieces_of(FRONTEND, text, None, split_chars=split_chars, more=True)
        return [(piece.text.strip(), piece.pause_samples // 24) for piece in found]

    assert segment(FIRST) == [(FIRST, 120)]
    assert segment(" Well, to begin with,") == [("Well, to begin with,", 60)]
    assert segment("Hello, [pause:1s]") == [("Hello,", 1000)]
    assert segment("[pause:1s]") == [("", 1000)]
    assert segment(" ... ") == []


def test_pauses_alone_say_nothing() -> None:
    with pytest.raises(EmptyText):
        pieces("[pause:1s] ... [pause:1s]")


def test_a_pause_of_a_minute_is_refused() -> None:
    with pytest.raises(TextError, match=r"\[pause:60s\].*at most \[pause:10s\]"):
        pieces("one [pause:60s] two")


@pytest.mark.parametrize("split_chars", [None, 60])
def test_the_sounds_that_turbo_knows_pass_through(split_chars: int | None) -> None:
    text = "That is so funny! [laugh] Oh, dear. [clear throat] Where were we? [pause:1s] [sigh] I see."
    said = " ".join(text for text, _ in pieces(text, split_chars))
    assert said == text.replace("[pause:1s] ", "")


def test_only_wren_is_budgeted_by_its_text_ids() -> None:
    for name, defaults in MODEL_DEFAULTS.items():
        assert (defaults.tokens_per_text_id is not None) == (name == "wren")
    assert budget_tokens(5, MODEL_DEFAULTS["english"]) == 1000
    assert budget_tokens(5, MODEL_DEFAULTS["turbo"]) == 1001


def test_a_short_text_cannot_run_on() -> None:
    wren = replace(MODEL_DEFAULTS["wren"], tokens_per_text_id=6.0, max_new_tokens=750)
    assert budget_tokens(2, wren) == BUDGET_FLOOR_TOKENS + 12
    assert budget_tokens(1000, wren) == 750


def test_each_piece_has_a_seed_of_its_own_and_the_first_has_the_requests() -> None:
    seeds = [nth_seed(7, piece) for piece in range(50)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 50
    assert all(0 <= seed < SEED_LIMIT for seed in seeds)
    assert nth_seed(8, 1) != nth_seed(7, 1)
