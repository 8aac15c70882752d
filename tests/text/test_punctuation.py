"""The punctuation rules of the three families, row by row."""

from __future__ import annotations

import pytest

from nightingale.errors import EmptyText
from nightingale.text.punctuation import ENGLISH, MULTILINGUAL, TURBO, normalize_punctuation

ROWS = [
    # raw, English and multilingual, Turbo
    ("hello there", "Hello there.", "Hello there."),
    ("Done!", "Done!", "Done!"),
    ("Wait... what", "Wait,  what.", "Wait... what."),
    ("Wait… what", "Wait,  what.", "Wait,  what."),
    ("one: two", "One, two.", "One, two."),
    ("one; two", "One,  two.", "One; two."),
    ("one - two", "One, two.", "One - two."),
    ("one — two – three", "One - two - three.", "One - two - three."),
    ("“a” and ‘b’", "\"a\" and 'b'.", "\"a\" and 'b'."),
    ("a ,b", "A,b.", "A,b."),
    ("  many \t spaces \n here ", "many spaces here.", "many spaces here."),
    ("ends with…", "Ends with,", "Ends with,"),
    ("a dash -", "A dash -", "A dash -"),
    ('"quoted."', '"quoted.".', '"quoted.".'),
]


@pytest.mark.parametrize(("raw", "english", "turbo"), ROWS)
def test_each_family_normalizes_by_its_own_table(raw: str, english: str, turbo: str) -> None:
    assert normalize_punctuation(raw, ENGLISH) == english
    assert normalize_punctuation(raw, MULTILINGUAL) == english
    assert normalize_punctuation(raw, TURBO) == turbo


@pytest.mark.parametrize("ending", ["、", "，", "。", "？", "！"])
def test_only_the_multilingual_family_has_wide_sentence_endings(ending: str) -> None:
    assert normalize_punctuation("你好" + ending, MULTILINGUAL) == "你好" + ending
    assert normalize_punctuation("你好" + ending, ENGLISH) == "你好" + ending + "."


def test_a_leading_space_hides_the_first_letter() -> None:
    assert normalize_punctuation(" hello", ENGLISH) == "hello."


@pytest.mark.parametrize("blank", ["", " ", "\t\n", "\u00a0\u2003"])
def test_blank_text_is_refused(blank: str) -> None:
    with pytest.raises(EmptyText, match="nothing to say"):
        normalize_punctuation(blank, ENGLISH)
