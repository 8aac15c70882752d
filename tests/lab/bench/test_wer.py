"""Word error rate: what counts as an error, and what does not."""

from __future__ import annotations

import pytest

from nightingale_lab.bench.wer import compare, corpus_rate, skipped_or_repeated

SAME = [
    ("It was nineteen eighty-four.", "It was 1984."),
    ("In 1984, in 2005, in 1900.", "in nineteen eighty four in two thousand and five in nineteen hundred"),
    ("forty", "40"),
    ("40", "forty"),
    ("one hundred and five", "105"),
    ("twenty-five hundred", "2,500"),
    ("1,234,567", "one million two hundred thirty four thousand five hundred and sixty seven"),
    ("March third", "March 3rd"),
    ("the twenty-first", "the 21st"),
    ("the thirtieth", "the 30th"),
    ("room 101", "room one oh one"),
    ("$3.50", "three dollars and fifty cents"),
    ("$1", "one dollar"),
    ("$2.5 million", "two point five million dollars"),
    ("3.14", "three point one four"),
    ("the 1980s", "the nineteen eighties"),
    ("fifty per cent", "50%"),
    ("It's a colour I recognise.", "It is a color I recognize"),
    ("They'd gone; we've not, she'll go, I'm here.", "they had gone we have not she will go I am here"),
    ("won't you, can't you", "will not you can not you"),
    ("grey theatre centre, travelled", "gray theater center traveled"),
    ("Dr. Smith", "doctor Smith"),
    ("St. Mary", "Saint Mary"),
    ("the café", "the cafe"),
    ("“Don’t!” she said…", "don't, she said"),
    ("yes", "um, yes"),
    ("", "..."),
]


@pytest.mark.parametrize(("expected", "transcript"), SAME)
def test_spelling_case_punctuation_and_numerals_are_no_errors(expected: str, transcript: str) -> None:
    assert compare(expected, transcript).errors == 0
    assert compare(transcript, expected).errors == 0


@pytest.mark.parametrize(
    ("expected", "transcript", "errors"),
    [
        ("The river bank.", "the riverbank", 2),
        ("a hundred sheep", "100 sheep", 1),
        ("March 3", "March third", 1),
        ("at 7:05", "at seven oh five", 2),
        ("U.S.A.", "USA", 3),
        ("its paw", "it's paw", 2),
    ],
)
def test_the_usual_rule_counts_what_sounds_the_same(expected: str, transcript: str, errors: int) -> None:
    """These are known weaknesses of the rule, which the published rates include."""
    assert compare(expected, transcript).errors == errors


WRONG = [
    # expected, transcript, substitutions, deletions, insertions
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
    ("$3.50", "three fifty five", 1, 0, 0),
]


@pytest.mark.parametrize(("expected", "transcript", "substitutions", "deletions", "insertions"), WRONG)
def test_a_wrong_lost_or_added_word_counts_once(
    expected: str, transcript: str, substitutions: int, deletions: int, insertions: int
) -> None:
    found = compare(expected, transcript)
    assert (found.substitutions, found.deletions, found.insertions) == (substitutions, deletions, insertions)


def test_words_lost_at_the_end_are_told_from_words_lost_inside() -> None:
    assert compare("one day the cat sat down", "one day the cat").lost_tail == 2
    assert compare("one day the cat sat down", "one day sat down").lost_tail == 0
    # If the last words are wrong, their letters decide which of them was lost.
    assert compare("highly of her attractions", "highly of retractions").lost_tail == 0
    assert compare("highly of her attractions", "highly of hair").lost_tail == 1
    assert compare("highly of her attractions", "highly of").lost_tail == 2


def test_words_written_joined_or_as_digits_at_the_end_are_not_lost() -> None:
    assert compare("the city has ninety floors", "the city has 94s").lost_tail == 0
    assert compare("we met in nineteen eighty four", "we met in 1984").lost_tail == 0
    assert compare("down to the river bank", "down to the riverbank").lost_tail == 0
    assert compare("down to the riverbank", "down to the river bank").extra_tail == 0


def test_words_after_the_end_are_told_from_words_added_inside() -> None:
    assert compare("the cat sat", "the cat sat sat sat").extra_tail == 2
    assert compare("the cat sat", "the big big cat sat").extra_tail == 0


def test_other_languages_are_compared_without_english_rules() -> None:
    assert compare("Guten Morgen, wie geht es?", "guten morgen wie geht es", "de").errors == 0
    assert compare("vierzig", "40", "de").errors == 1


def test_the_corpus_rate_weighs_words_not_utterances() -> None:
    one = compare("yes", "no")
    nine = compare("a b c d e f g h i", "a b c d e f g h i")
    assert corpus_rate([one, nine]) == pytest.approx(0.1)
    assert corpus_rate([]) == 0.0


def test_words_recognized_where_none_were_expected_are_a_full_error() -> None:
    assert compare("", "thank you").rate == 1.0
    assert compare("", "").rate == 0.0


@pytest.mark.parametrize(
    ("transcripts", "count"),
    [
        (["he told her that he had gone"] * 2, 0),
        (["he told her he had gone", "he told her that he had gone"], 0),
        (["he told her he had gone", "he sold her he had gone"], 1),
        (["he told her told her that he had gone"] * 2, 2),
        (["he told her that he had gun"] * 2, 0),
        (["he told her that he had gone away", "he told her that he had gone home"], 0),
        ([], 0),
    ],
)
def test_words_are_skipped_or_repeated_only_if_all_recognizers_agree(
    transcripts: list[str], count: int
) -> None:
    assert skipped_or_repeated("He told her that he had gone.", transcripts) == count


@pytest.mark.parametrize(
    ("expected", "transcript"),
    [
        ("We walked along the river bank.", "We walked along the riverbank."),
        (
            "Whoever paints the riverbank likes that colour.",
            "Who ever paints the river bank likes that color.",
        ),
        ("It took twelve years.", "It took 12 years."),
        ("The dog wagged its tail.", "The dog wagged it's tail."),
        ("They met in Nottingham.", "They met in nodding him."),
        ("Three hundred thousand, four hundred thousand!", "300,000, 400,000."),
        ("Dial five, five, five.", "Dial 555."),
    ],
)
def test_other_spellings_are_no_skipped_or_repeated_words(expected: str, transcript: str) -> None:
    assert skipped_or_repeated(expected, [transcript, transcript]) == 0


def test_a_lost_clause_and_a_doubled_one_are_counted_word_by_word() -> None:
    expected = "She asked him why he was so late and he told her that he had been teaching."
    lost = "She asked him why he and he told her that he had been teaching."
    assert skipped_or_repeated(expected, [lost, lost]) == 3
    doubled = "She asked him why he was so late and he told her that he told her that he had been teaching."
    assert skipped_or_repeated(expected, [doubled, doubled]) == 4
