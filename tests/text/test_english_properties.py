"""Properties of the normalizer for any text: plain characters, idempotence and speed."""

from __future__ import annotations

import re

import pytest
from cpu_time import cpu_seconds
from hypothesis import given, settings
from hypothesis import strategies as st
from num2words import num2words

from nightingale.text.english import normalize, words

PLAIN = re.compile(r"[A-Za-z .,!?;:'\"()-]*")
FRAGMENTS = [
    fragment
    for line in (
        "0 1 5 12 99 100 007 1984 2024 1,234 3.14 .5 1.2.3 1/2 24/7 12/31/99 2024-03-15 3:30 1e5 '90s 1990s",
        "$ £ € ¥ % & @ # + = - – — * _ ~ ^ ° / \\ | < > [ ] { } ( ) . , ! ? ; : ' \" … ½ ² µ × ± ≈ § №",
        "km kg s m GB am pm a.m. p.m. Dr. St. No. vs. etc. e.g. U.S. BC Mr. Jr. w/ Inc. K M B x st th",
        "FBI NASA US IT XIV I V A HELLO Henry Chapter March Jan. Mon in the and John word 🙂 é ß π Ж 日",
        "no. fig. art. He In The Is it St Dr Sept. Sun. ft. in. tsp million bill between to -$ June II Louis",
        "≠ ⁻³ ⁶ <5 a<b <3 2*3 2^-3 − \u00ad \u200d Psalm 23:4 5m people HK$ Vol. CHAPTER 14:30:00Z kg/m³",
        '1h 30m 27" 120/80 0xFF H₂SO₄ v3.0rc1 10.0.0.0/8 /etc x**2 $x^2$ [2] [x] kΩ 1,50,000 est. #A-1 4.5/5 2x - n',
        "example.com joe@example.org https://a.io/b?c=d www.x.org report.pdf <b> </p> ** ``` ![a](b)",
    )
    for fragment in line.split()
] + [" ", "  ", "\n", "\n\n", "\t"]
MESSY = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join) | st.lists(
    st.sampled_from(FRAGMENTS), max_size=14
).map(" ".join)
EVERY = settings(max_examples=150, deadline=None, derandomize=True, database=None)
CHARACTERS = st.integers(32, 126) | st.integers(1, 0x2FFF) | st.integers(0x3000, 0x1FAFF)
TEXTS = MESSY | st.lists(CHARACTERS, max_size=40).map(lambda codes: "".join(map(chr, codes)))


@EVERY
@given(TEXTS)
def test_only_letters_spaces_and_plain_punctuation_come_out(text: str) -> None:
    assert PLAIN.fullmatch(normalize(text)), normalize(text)


@EVERY
@given(TEXTS)
def test_normalization_is_idempotent(text: str) -> None:
    once = normalize(text)
    assert normalize(once) == once


@EVERY
@given(TEXTS)
def test_the_result_is_at_most_a_bounded_factor_longer(text: str) -> None:
    assert len(normalize(text)) <= 24 * len(text) + 24


@EVERY
@given(TEXTS)
def test_the_result_has_no_stray_spaces(text: str) -> None:
    said = normalize(text)
    assert said == said.strip()
    assert "  " not in said


REPEATED = [
    "7", "1,", "1.", "12-", "1/", "3:", "A.", "<", "![a](", "*a", "#", "@a", "a@b.", "http://a.", "é", "🙂",
    "~", "v1.", "a-", "word ", "$1 ", "<!--", "\n- ", " -", "Henry V ", "+1 ", "= ",
    "a<b ", "<b ", "<b c=", "10^", "x²", "2*", "<3 ", "> 5 ", "a-\n", "a\xad", "1 234 ", "5 000 ",
    "1\xa0000\xa0", "x − ", "Job 1:1-", "5 kg/", "2023-10-05T", "5m ", "HK$", "[a](b(", "[a](b) ",
    "no. 1, ", "fig. 1 and ", "$1-", "$1 to ", "U.S. In A", "Elm ", "on Elm Dr. ", "June 5-", "1/2 ",
    "1h ", "1d", "5\" ", "0x1", "H2", "v1.0rc", "1.1.1.1/", "/a", "a.b", "x - ", "$x_", "\\frac{a}", "[1]",
    "```\n", "~~~\n", "- [ ] ", "1,00,", "is 1-", "4/5 ", ", NY 1", "2x + ", "`a", "#A-1", "a && ",
]  # fmt: skip


@pytest.mark.parametrize("unit", REPEATED)
def test_ten_thousand_repeated_characters_take_less_than_a_second(unit: str) -> None:
    text = (unit * 10_000)[:10_000]
    said: list[str] = []
    assert cpu_seconds(lambda: said.append(normalize(text))) < 1.0
    assert PLAIN.fullmatch(said[0])


@EVERY
@given(st.integers(min_value=0, max_value=10**15 - 1))
def test_cardinals_agree_with_num2words(number: int) -> None:
    assert words.cardinal(number) == num2words(number).replace(",", "").replace(" and ", " ")


@EVERY
@given(st.integers(min_value=1, max_value=10**12))
def test_ordinals_agree_with_num2words(number: int) -> None:
    assert words.ordinal(number) == num2words(number, to="ordinal").replace(",", "").replace(" and ", " ")
