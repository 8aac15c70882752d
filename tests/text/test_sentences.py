"""Splitting long text: at the pauses of a reader, without losing anything."""

from __future__ import annotations

import tracemalloc

import pytest
from cpu_time import cpu_seconds
from hypothesis import given
from hypothesis import strategies as st

from nightingale.text.sentences import (
    DEFAULT_SPAN_CHARS,
    FIRST_SPAN_CHARS,
    Ending,
    TextSpan,
    ends_sentence,
    grow_spans,
    split_paragraphs,
    split_sentences,
)
from nightingale.text.stops import spoken_length

FIRST = "The quick brown fox jumps over the lazy dog."
SECOND = "It was a bright cold day in April, and the clocks were striking."


def split(text: str, max_chars: int, language: str | None = None) -> list[str]:
    return [span.text for span in split_sentences(text, max_chars, language)]


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
        ["See https://example.com/a.b?c=1.5 for more of it.", SECOND],
        [
            "Version 2.0.1 came out at 5 p.m. on a rainy Tuesday.",
            "The office closed at exactly 6 p.m.",
            FIRST,
        ],
        ["She has lived in the U S.", "He came home at six P M.", SECOND],
        ["The answer stands in No. 5 of the papers, on p. 12.", SECOND],
        ["Well . . . maybe we should not go there.", SECOND],
        ["That was funny, I have to say!", "[laugh] Really, it was quite something."],
        ["Nobody saw it coming. [sigh] or perhaps she did.", SECOND],
        ["¿Quién viene con nosotros esta noche?", "¡Nadie lo sabe todavía, amigo mío!"],
    ],
)
def test_a_sentence_is_a_span(sentences: list[str]) -> None:
    assert split(" ".join(sentences), 220) == sentences


@pytest.mark.parametrize(
    ("language", "glue", "sentences"),
    [
        ("de", " ", ["Es geschah am 3. Mai vor der Tür von Hr. Müller.", "Danach war alles ganz anders."]),
        ("fr", " ", ["Voici M. Dupont, qui vient de Paris.", "Il est vraiment là depuis hier ?"]),
        ("el", " ", ["Πού πηγαίνεις σήμερα το πρωί;", "Πηγαίνω στο σχολείο με τα παιδιά."]),
        ("hi", " ", ["यह पहला वाक्य है जो काफी लंबा है।", "यह दूसरा वाक्य है जो भी लंबा है॥"]),
        ("ar", " ", ["هل أنت قادم معنا إلى المدينة اليوم؟", "نعم سوف آتي معكم بعد قليل."]),
        ("ur", " ", ["یہ پہلا جملہ ہے جو کافی لمبا ہے۔", "یہ دوسرا جملہ ہے جو کافی لمبا ہے۔"]),
        (
            "zh",
            "",
            ["今天天气很好，我们去公园玩吧。", "你想跟我们一起来吗？", "因为今天是星期天，大家都有空！"],
        ),
        ("ja", "", ["「行くよ。」と彼は静かに言った。", "彼女は笑って、何も言わなかった。"]),
        (None, "", ["这是版本3.14的说明，请仔细阅读。", "“他说：明天再来吧。”", "于是大家都慢慢地走了。"]),
    ],
)
def test_each_language_has_its_own_stops(language: str | None, glue: str, sentences: list[str]) -> None:
    assert split(glue.join(sentences), 220, language) == sentences


def test_a_semicolon_is_a_question_mark_in_greek_only() -> None:
    text = "It rained for a whole day; Nobody went out into the street."
    assert split(text, 220) == [text]
    assert len(split(text, 220, "el")) == 2


def test_a_markdown_link_is_not_split() -> None:
    link = f"[All of it. Really](http://example.com/{'a' * 60})"
    assert split(f"You will find it in {link}. {SECOND}", 220) == [f"You will find it in {link}.", SECOND]
    assert split(f"{FIRST[:-1]} and {link}", 110) == [f"{FIRST[:-1]} and", link]


def test_short_sentences_are_joined_with_their_neighbours() -> None:
    assert split("Hello. How are you?", 220) == ["Hello. How are you?"]
    assert split(f"No. {FIRST}", 220) == [f"No. {FIRST}"]
    assert split(f"{FIRST} Yes.", 220) == [f"{FIRST} Yes."]
    assert split(f"{FIRST} {SECOND}", 220) == [FIRST, SECOND]
    assert split(f"{FIRST} Yes.", len(FIRST)) == [FIRST, "Yes."]


def test_a_long_sentence_is_split_at_its_best_mark() -> None:
    clause = "the ship went out to sea, and the gulls came after it"
    assert split(f"{clause}; {clause}.", 80) == [f"{clause};", f"{clause}."]
    assert split("one two three four five, six seven eight nine ten", 30) == [
        "one two three four five,",
        "six seven eight nine ten",
    ]


def test_a_split_between_words_is_spoken_with_a_comma() -> None:
    parts = list(split_sentences("word " * 50, 60))
    assert len(parts) > 3
    assert all(part.spoken == part.text + "," and part.ending is Ending.WORD for part in parts[:-1])
    assert parts[-1].spoken.endswith("word")
    assert min(len(part.text) for part in parts) > 30, "the parts are of about equal length"


def test_each_span_has_its_ending() -> None:
    text = f"Chapter one\n\n{FIRST} one two three four five, six seven eight nine\n \n{SECOND}"
    assert [(part.text, part.ending) for part in split_sentences(text, 64)] == [
        ("Chapter one", Ending.PARAGRAPH),
        (f"{FIRST}", Ending.SENTENCE),
        ("one two three four five, six seven eight nine", Ending.PARAGRAPH),
        (SECOND, Ending.PARAGRAPH),
    ]
    assert [part.ending for part in split_sentences("one two three four five, six seven eight", 30)] == [
        Ending.CLAUSE,
        Ending.PARAGRAPH,
    ]


def test_spans_can_be_filled() -> None:
    text = " ".join([FIRST, SECOND] * 5)
    full = [part.text for part in split_sentences(text, DEFAULT_SPAN_CHARS, join_below=DEFAULT_SPAN_CHARS)]
    assert [text.count(".") for text in full] == [5, 4, 1]
    assert max(map(len, full)) <= DEFAULT_SPAN_CHARS


def test_a_chinese_span_has_fewer_characters() -> None:
    text = "我们在公园里走了很久，" * 40
    spans = split(text, DEFAULT_SPAN_CHARS)
    assert len(spans) > 3
    assert bare("".join(spans)) == text
    assert max(map(len, spans)) <= DEFAULT_SPAN_CHARS // 2
    assert all(spoken_length(span) <= DEFAULT_SPAN_CHARS and span.endswith("，") for span in spans)


@pytest.mark.parametrize("tag", ["[laugh]", "[clear throat]", "[pause: 500ms]"])
def test_no_split_is_inside_a_tag(tag: str) -> None:
    for before in range(60):
        spans = split("a" * before + " " + f"{tag} so " * 8, 40)
        assert len(spans) > 1
        assert sum(span.count(tag) for span in spans) == 8


def test_a_letter_keeps_its_combining_marks() -> None:
    spans = split("कि" * 200, 41)
    assert len(spans) > 8
    assert all(span.startswith("क") and span.endswith("ि") for span in spans)


def test_lower_case_text_is_split_after_its_full_stops() -> None:
    text = "this was typed in a hurry. nobody used the shift key. it goes on and on like that."
    assert split(text, 60) == [
        "this was typed in a hurry. nobody used the shift key.",
        "it goes on and on like that.",
    ]


def test_paragraphs_are_never_joined() -> None:
    assert split("Chapter one\n\nIt begins.\nIt goes on.", 220) == ["Chapter one", "It begins. It goes on."]


@pytest.mark.parametrize("text", ["", "  \n", "...", '"!?"', "- -"])
def test_text_without_a_letter_has_no_span(text: str) -> None:
    assert split(text, 220) == []


def test_marks_without_a_word_are_not_spoken() -> None:
    assert split(f"{FIRST}\n\n* * *\n\n{SECOND}", 220) == [FIRST, SECOND]


def test_ten_thousand_letters_without_a_space_are_split() -> None:
    spans = split("a" * 10_000, 220)
    assert "".join(spans) == "a" * 10_000
    assert max(map(len, spans)) <= 220


ANY_TEXT = st.text(alphabet="abAB .,;:!?…\"'()-\n1[]今か한。、」कि।", max_size=400)
WORDS = st.lists(
    st.sampled_from(
        ["Dr.", "3.14", "e.g.", "I.", "so", "word,", "End.", "Really?!", '"Yes."', "well…", "one;", "—",
         "[laugh]", "\n\n", "\n", "今天。", "公园，", "第一"]
    ),
    max_size=60,
).map(" ".join)  # fmt: skip


def bare(text: str) -> str:
    return "".join(text.split())


@given(ANY_TEXT, st.integers(8, 80))
def test_no_letter_is_lost_and_no_span_is_too_long_or_empty(text: str, max_chars: int) -> None:
    spans = split(text, max_chars)
    letters = [c for span in spans for c in span if c.isalnum()]
    assert letters == [c for c in text if c.isalnum()]
    assert all(spoken_length(span) <= max_chars for span in spans)
    assert all(any(c.isalnum() for c in span) for span in spans)


@given(WORDS, st.integers(40, 300))
def test_the_joined_spans_are_the_text_except_for_spaces(text: str, max_chars: int) -> None:
    # A dash at the end of a paragraph is dropped.
    paragraphs = [part.rstrip(" \n—") for part in f"Start {text} end".split("\n\n")]
    spoken = [part for part in paragraphs if any(map(str.isalnum, part))]
    assert bare("".join(split("\n\n".join(paragraphs), max_chars))) == bare("".join(spoken))


@given(st.one_of(ANY_TEXT, WORDS), st.integers(8, 80), st.integers(1, 50))
def test_the_blocks_of_the_input_do_not_matter(text: str, max_chars: int, size: int) -> None:
    text = text * 8
    blocks = [text[at : at + size] for at in range(0, len(text), size)]
    assert list(split_sentences(blocks, max_chars)) == list(split_sentences(text, max_chars))
    assert "".join(part for part, _ in split_paragraphs(blocks)) == text


BOOK = (f"{FIRST} {SECOND} " * 20 + "\n\n") * 46


def test_a_book_is_split_fast_and_in_little_memory() -> None:
    assert len(BOOK) > 100_000
    assert cpu_seconds(lambda: list(split_sentences(BOOK, DEFAULT_SPAN_CHARS))) < 1, (
        "0.04 s on an idle machine"
    )
    assert sum(1 for _ in split_sentences(BOOK, DEFAULT_SPAN_CHARS)) == 46 * 40
    tracemalloc.start()
    for _ in split_sentences(BOOK, DEFAULT_SPAN_CHARS):
        pass
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < len(BOOK) / 2


@pytest.mark.parametrize("page", ["word ", "a", ".", "今", " ", "\n", "a. [b ", "Dr. ", "।", "A.\n"])
def test_no_text_is_slow_to_split(page: str) -> None:
    text = page * (20_000 // len(page))
    took_s = cpu_seconds(lambda: list(split_sentences(text, DEFAULT_SPAN_CHARS)))
    assert took_s < 1, "under 0.1 s on an idle machine"


def test_paragraphs_are_whole_and_long_ones_are_runs_of_sentences() -> None:
    found = list(split_paragraphs(f"{FIRST}\n{SECOND}\n\n" + f"{FIRST} " * 100))
    assert found[0] == (f"{FIRST}\n{SECOND}", True)
    assert [whole for _, whole in found] == [True, False, False, True]
    assert all(text.rstrip().endswith(".") for text, _ in found)


def test_the_voice_falls_at_the_end_of_a_sentence_only() -> None:
    assert ends_sentence('He said "no."')
    assert ends_sentence("Really?")
    assert not ends_sentence("to begin with,")
    assert not ends_sentence("word")


def grown(text: str, max_chars: int = DEFAULT_SPAN_CHARS) -> list[str]:
    spans = grow_spans(split_sentences(text, max_chars), max_chars)
    return [span.text for span in spans if isinstance(span, TextSpan)]


def test_the_first_sentence_is_a_span_and_later_ones_grow() -> None:
    assert grown(f"{FIRST} {SECOND} {FIRST}") == [FIRST, f"{SECOND} {FIRST}"]
    lengths = [len(text) for text in grown(" ".join([FIRST] * 30))]
    assert lengths[:3] == [44, 89, 179]
    assert set(lengths[3:-1]) == {269}, "then they are filled"


@pytest.mark.parametrize("text", [FIRST, f"No. {FIRST}", f"{FIRST} Yes."])
def test_a_single_sentence_is_not_split_for_an_early_start(text: str) -> None:
    assert grown(text) == [text]


def test_a_long_first_sentence_is_split_after_a_clause() -> None:
    clause = "When the ships came back to the harbour after so many years,"
    rest = "nobody who had seen them leave was still alive, and their children did not know them."
    assert grown(f"{clause} {rest} {FIRST}") == [clause, f"{rest} {FIRST}"]


def test_a_long_first_sentence_without_a_mark_stays_whole() -> None:
    text = "This sentence goes on and on without a single mark " * 3 + "until it ends."
    assert len(text) > FIRST_SPAN_CHARS
    assert grown(f"{text} {FIRST}") == [text, FIRST]


def test_grown_spans_keep_paragraphs_and_pauses() -> None:
    one, two = (
        TextSpan("The end of a paragraph.", Ending.PARAGRAPH),
        TextSpan("Another one.", Ending.SENTENCE),
    )
    assert list(grow_spans([one, two, two, 500, two], 280)) == [
        one,
        TextSpan("Another one. Another one.", Ending.SENTENCE),
        500,
        two,
    ]
    assert list(grow_spans([], 280)) == []


@given(st.one_of(ANY_TEXT, WORDS), st.integers(20, 300))
def test_grown_spans_lose_no_letter_and_are_not_too_long(text: str, max_chars: int) -> None:
    spans = list(grow_spans(split_sentences(text, max_chars), max_chars))
    texts = [span.text for span in spans if isinstance(span, TextSpan)]
    assert bare("".join(texts)) == bare("".join(split(text, max_chars)))
    assert all(spoken_length(span) <= max_chars for span in texts)
