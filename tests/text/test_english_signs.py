"""Normalization of symbols and layout whose meaning would be lost or reversed if they were dropped."""

from __future__ import annotations

import pytest

from nightingale.text.english import normalize

NEGATED = [
    ("If x ≠ y then stop.", "If x is not equal to y then stop."),
    ("x =\u0338 y", "x is not equal to y"),
    ("x &ne; y", "x is not equal to y"),
    ("x ≮ y", "x is not less than y"),
    ("x ≯ y", "x is not greater than y"),
    ("x ≰ y", "x is not at most y"),
    ("x ≱ y", "x is not at least y"),
    ("a ∉ B", "a is not in B"),
]

POWERS = [
    ("10⁻³ m", "ten to the power of minus three meters"),
    ("10⁻³", "ten to the power of minus three"),
    ("10^-3", "ten to the power of minus three"),
    ("10^−3", "ten to the power of minus three"),
    ("10⁶", "ten to the power of six"),
    ("3×10⁸ m/s", "three times ten to the power of eight meters per second"),
    ("2**3", "two to the power of three"),
    ("5²", "five squared"),
    ("x² + y³", "x squared plus y cubed"),
    ("x^2 + y^3", "x squared plus y cubed"),
    ("x^10", "x to the power of ten"),
    ("x⁵", "x to the power of five"),
    ("2^n", "two to the power of n"),
    ("5 km^2", "five square kilometers"),
    ("see the ^ mark", "see the mark"),
    ("¹⁴C", "fourteen C"),
]

COMPARED = [
    ("x<5", "x is less than five"),
    ("p<0.05", "p is less than zero point zero five"),
    ("p <0.05", "p less than zero point zero five"),
    ("x<-5", "x is less than minus five"),
    ("<5%", "less than five percent"),
    (">5%", "greater than five percent"),
    ("(< 5 %)", "(less than five percent)"),
    (">2000 people", "greater than two thousand people"),
    ("<$5", "less than five dollars"),
    ("a<b", "a is less than b"),
    ("A > B", "A is greater than B"),
    ("3<4", "three is less than four"),
    ("if a<b and c>d then", "if a is less than b and c is greater than d then"),
    ("for n <3, stop", "for n less than three, stop"),
    ("Thank you <3", "Thank you"),
    ("Love you! <3 See you", "Love you! See you"),
    ("I <3 you", "I love you"),
    ("a <- b", "a, b"),
]

NOT_COMPARED = [
    ("<speak>Hi <break time='1s'/> you</speak>", "Hi you"),
    ('word<span class="x">s</span>', "word s"),
    ('<say-as interpret-as="date">May</say-as> came', "May came"),
    ('<?xml version="1.0"?><p>Hi</p>', "Hi"),
    ("<input disabled> name", "name"),
    ("Press <C-Left> now", "Press C-Left now"),
    ("> quoted <b>text</b>", "quoted text"),
]

MULTIPLIED = [
    ("2*3", "two times three"),
    ("2 * 3 * 4", "two times three times four"),
    ("2*x", "two times x"),
    ("a*b", "a times b"),
    ("n*2", "n times two"),
    ("2*(3+4)", "two times (three plus four)"),
    ("**5** apples", "five apples"),
    ("*so* and **so**", "so and so"),
    ("see note*", "see note"),
    ("* one\n* 2", "one. two"),
]

INVISIBLE = [
    ("in\u00adter\u00adest\u00ading", "interesting"),
    ("in&shy;ter&shy;est&shy;ing", "interesting"),
    ("inter\u00ad\nesting", "interesting"),
    *((f"won{mark}derful", "wonderful") for mark in "\u200b\u200c\u200d\u200e\u2060\u2069\ufeff"),
    ("\ufeffHello", "Hello"),
    ("1\u200b000 cats", "one thousand cats"),
    ("well \U0001f469\u200d\U0001f680 done", "well done"),
]

BROKEN = [
    ("a hyphen-\nated word", "a hyphenated word"),
    ("a hyphen-\r\nated word", "a hyphenated word"),
    ("a hyphen- \n  ated word", "a hyphenated word"),
    ("a well-\nknown word", "a well-known word"),
    ("a mother-in-\nlaw", "a mother-in-law"),
    ("a mother-\nin-law", "a mother-in-law"),
    ("the Anglo-\nSaxons", "the Anglo Saxons"),
    ("two-\nand three-year-olds", "two and three-year-olds"),
]

LINKS = [
    ("[the docs. Really](http://x.com/a.b)", "the docs. Really"),
    ("[Ann](https://en.wikipedia.org/wiki/Ann_(name)) sang", "Ann sang"),
    ('[Ann](http://x.com/?a[]=1 "A name") sang', "Ann sang"),
]

ROWS = [
    *NEGATED,
    *POWERS,
    *COMPARED,
    *NOT_COMPARED,
    *MULTIPLIED,
    *INVISIBLE,
    *BROKEN,
    *LINKS,
]


@pytest.mark.parametrize(("written", "said"), ROWS)
def test_symbols_are_normalized(written: str, said: str) -> None:
    assert normalize(written) == said


@pytest.mark.parametrize(("written", "said"), ROWS)
def test_normalized_symbols_are_unchanged(written: str, said: str) -> None:
    assert normalize(said) == said, written


def test_no_row_occurs_twice() -> None:
    assert len({written for written, _ in ROWS}) == len(ROWS)
