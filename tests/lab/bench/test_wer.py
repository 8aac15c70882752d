"""Word error rate: what counts, what does not."""

from __future__ import annotations

import pytest

from nightingale_lab.bench.wer import compare, corpus_rate, word_count

SAME = [
    ("The river bank.", "the riverbank"),
    ("Well-known ice cream!", "wellknown icecream"),
    ("It was nineteen eighty-four.", "It was 1984."),
    ("In 1984, in 2005, in 1900.", "in nineteen eighty four in two thousand and five in nineteen hundred"),
    ("forty", "40"),
    ("40", "forty"),
    ("one hundred and five", "105"),
    ("a hundred sheep", "100 sheep"),
    ("twenty-five hundred", "2,500"),
    ("1,234,567", "one million two hundred thirty four thousand five hundred and sixty seven"),
    ("March third", "March 3rd"),
    ("March 3", "March third"),
    ("the twenty-first", "the 21st"),
    ("the thirtieth", "the 30th"),
    ("call 555-1234", "call five five five one two three four"),
    ("room 101", "room one oh one"),
    ("at 3:30 p.m.", "at three thirty PM"),
    ("at 7:05", "at seven oh five"),
    ("at quarter past six", "at 6:15"),
    ("at eight o'clock", "at 8:00"),
    ("$3.50", "three dollars and fifty cents"),
    ("$1", "one dollar"),
    ("$2.5 million", "two point five million dollars"),
    ("3.14", "three point one four"),
    ("half a cup", "1/2 a cup"),
    ("the 1980s", "the nineteen eighties"),
    ("fifty per cent", "50%"),
    ("It's a colour I can't recognise.", "It is a color I cannot recognize"),
    ("They'd gone; we've not, she'll go, I'm here.", "they had gone we have not she will go I am here"),
    ("won't you", "will not you"),
    ("its paw", "it's paw"),
    ("the dogs' house", "the dog's house"),
    ("grey theatre centre, travelled", "gray theater center traveled"),
    ("Dr. Smith and Mrs. Jones", "doctor Smith & missus Jones"),
    ("St. Mary on Elm St.", "Saint Mary on Elm Street"),
    ("U.S.A.", "USA"),
    ("the café", "the cafe"),
    ("“Don’t!” she said…", "don't, she said"),
    ("", "..."),
]


@pytest.mark.parametrize(("wanted", "heard"), SAME)
def test_two_ways_of_writing_one_sound_are_no_error(wanted: str, heard: str) -> None:
    assert compare(wanted, heard).errors == 0
    assert compare(heard, wanted).errors == 0


WRONG = [
    # wanted, heard, substitutions, deletions, insertions
    ("the cat sat", "the bat sat", 1, 0, 0),
    ("the cat sat", "the sat", 0, 1, 0),
    ("the cat sat", "the black cat sat", 0, 0, 1),
    ("mechanic", "mechanics", 1, 0, 0),
    ("forty", "fourteen", 1, 0, 0),
    ("nineteen eighty five", "1984", 1, 0, 0),
    ("it is", "it was", 1, 0, 0),
    ("hare", "hair", 1, 0, 0),
    ("he had gone", "he would gone", 1, 0, 0),
    ("the river bank", "the riverboat", 1, 1, 0),
    ("hello", "", 0, 1, 0),
    ("", "thank you", 0, 0, 2),
    ("$3.50", "three fifty five", 0, 0, 1),
]


@pytest.mark.parametrize(("wanted", "heard", "substitutions", "deletions", "insertions"), WRONG)
def test_a_wrong_lost_or_added_word_counts_once(
    wanted: str, heard: str, substitutions: int, deletions: int, insertions: int
) -> None:
    found = compare(wanted, heard)
    got = (found.errors, found.insertions - found.deletions)
    assert got == (substitutions + deletions + insertions, insertions - deletions), found


def test_words_lost_at_the_end_are_told_from_words_lost_inside() -> None:
    assert compare("one day the cat sat down", "one day the cat").lost_tail == 2
    assert compare("one day the cat sat down", "one day sat down").lost_tail == 0
    # Which of two words was lost, where both are wrong, is told by their letters.
    assert compare("highly of her attractions", "highly of retractions").lost_tail == 0
    assert compare("highly of her attractions", "highly of hair").lost_tail == 1
    assert compare("highly of her attractions", "highly of").lost_tail == 2


def test_words_after_the_end_are_told_from_words_added_inside() -> None:
    assert compare("the cat sat", "the cat sat sat sat").extra_tail == 2
    assert compare("the cat sat", "the big big cat sat").extra_tail == 0


def test_a_numeral_weighs_as_many_words_as_its_shortest_reading() -> None:
    assert word_count("It was 1984.") == 5
    assert word_count("in 40 days") == 3


def test_the_corpus_rate_weighs_words_not_utterances() -> None:
    one = compare("yes", "no")
    nine = compare("a b c d e f g h i", "a b c d e f g h i")
    assert corpus_rate([one, nine]) == pytest.approx(0.1)
    assert corpus_rate([]) == 0.0


def test_words_heard_where_none_were_wanted_are_a_full_error() -> None:
    assert compare("", "thank you").rate == 1.0
    assert compare("", "").rate == 0.0


def test_a_sentence_of_sixty_words_compares_in_a_blink() -> None:
    text = " ".join(f"word{'abcdefghij'[i % 10]} item" for i in range(30))
    assert compare(text, text).errors == 0
