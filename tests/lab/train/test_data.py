"""The data stage: what is read, in which vocabulary."""

from __future__ import annotations

import random
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from nightingale_lab.train import prepare, texts
from nightingale_lab.train.hard_examples import HardExamples
from nightingale_lab.train.templates import TemplateWriter, clock

ALPHABET = re.compile(r"[A-Za-z .,!?;:'\"-]+")


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        ("“Just go,” he told me", '"Just go," he told me.'),
        ("I had a dog—at least I had him", "I had a dog, at least I had him."),
        ("‘Polly wants a cracker,’ you say.", '"Polly wants a cracker," you say.'),
        ("Mr. Smith met Dr. Jones.", "Mister Smith met Doctor Jones."),
        ("The US and the FBI joined NATO.", "The U S and the F B I joined NATO."),
        ("Let 'em go to the boys' club.", "Let 'em go to the boys' club."),
        ("Well… maybe", "Well, maybe."),
        ("café", "Cafe."),
        ("No.", "No."),
        ("In 1915 it rained.", None),
        ("J. K. Rowling wrote it.", None),
        ("HOW DARE YOU", None),
        ("An e-mail to a@b.c", None),
        (" ".join(["word"] * 61), None),
    ],
)
def test_a_raw_line_becomes_speakable_or_is_dropped(raw: str, wanted: str | None) -> None:
    assert texts.clean(raw) == wanted


def test_held_out_sentences_are_refused_also_inside_longer_lines_and_with_other_marks() -> None:
    excluded = texts.Exclusion(["The cat sat on the mat.", "Yes, please. Where is my blue hat?"])
    assert excluded.hits("the cat, sat on the mat!")
    assert excluded.hits("He said the cat sat on the mat and slept.")
    assert excluded.hits("Where is my blue hat?")
    assert excluded.hits("Yes, please!")
    assert not excluded.hits("Oh, yes, please do.")  # too short a quotation to give anything away
    assert not excluded.hits("The cat sat on the sofa.")


def test_gather_never_returns_a_test_sentence_or_a_repeat(tmp_path: Path) -> None:
    source = tmp_path / "list.txt"
    source.write_text("The cat sat on the mat.\nA dog ran off.\na dog ran off!\nHe left.\n")
    lines = prepare.gather(
        [source], [], held_out=["The cat sat on the mat."], frequent_words=["zebra", "Dog"],
        rare_words=["quartz"], book_share=1.0, generated=50, seed=1,
    )  # fmt: skip
    keys = [texts.key(line) for line in lines]
    assert len(keys) == len(set(keys))
    assert "the cat sat on the mat" not in keys
    assert "a dog ran off" in keys
    assert any("zebra" in key for key in keys)


def test_chapters_give_single_sentences_and_runs_of_at_most_sixty_words() -> None:
    chapter = "<p>" + " ".join(f"Here is a sentence of words, {w}." for w in ("yes", "no") * 20) + "</p>"
    lines = list(texts.book_lines(chapter, random.Random(0), run_share=0.5))
    sizes = [len(line.split()) for line in lines]
    assert min(sizes) == 7
    assert 14 < max(sizes) <= 60


def test_templates_use_only_the_alphabet_and_say_numbers_as_a_person_would() -> None:
    lines = list(TemplateWriter(random.Random(3), ["quartz"]).lines(3000))
    assert not [line for line in lines if not ALPHABET.fullmatch(line)]
    assert (clock(5, 5), clock(6, 0)) == ("five oh five", "six o'clock")


def test_hard_examples_are_of_all_kinds_and_end_the_same_words_with_every_mark() -> None:
    free = ["He went home.", "She bought the old house.", "Is it you?", "They laughed at the dog."]
    lines = list(HardExamples(random.Random(3), free, ["tree", "river"], ["Oslo"]).lines(2000))
    assert not [line for line in lines if not ALPHABET.fullmatch(line)]
    assert {f"She bought the old house{mark}" for mark in ".?!"} <= set(lines)
    for pattern in (
        r"([A-Z] )+[A-Z]\.", r".*\b(two|five) \1 .*", r"(?i)(\w+), \1, .*", r"He went home\. .* [A-Z]\w+[.!?]",
        r"\"They laughed at the dog,\" said Oslo\.", r"Did (you|Oslo|she) \w+ .*\?", r".*, and (tree|river)\.",
        r"She bought the old house because they .*", r"(I|You|We|They|He|She) couldn't \w+ .*\.",
        r"Can't (I|you|we|they|he|she) .*",
    ):  # fmt: skip
        assert any(re.fullmatch(pattern, line) for line in lines), pattern
    assert not [line for line in lines if re.search(r"[.!?] [a-z]|^[\"']?[a-z]|\w{", line)]


LETTERS_OF_TEST = {"A": [100], "C": [101], "I": [102]}


@pytest.mark.parametrize(
    ("text", "ids", "wanted"),
    [
        # The front end said "C I a" and dropped the stop.
        ("The C I A.", [50, 16, 51, 16, 52, 16, 53], [50, 16, 101, 16, 102, 16, 100, 4]),
        ("A dog ran.", [60, 16, 61, 16, 62, 4], [60, 16, 61, 16, 62, 4]),
        ("I see C, yes!", [60, 16, 61, 16, 62, 3, 16, 63, 5], [60, 16, 61, 16, 101, 3, 16, 63, 5]),
        ("Two words?", [60, 61], [60, 61, 6]),
        ("Nothing.", [], []),
    ],
)
def test_single_letters_are_called_by_their_names_and_the_final_mark_is_there(
    text: str, ids: list[int], wanted: list[int]
) -> None:
    assert prepare.correct_phonemes(text, ids, LETTERS_OF_TEST) == wanted


def test_the_text_ids_of_marks_are_those_of_the_vocabulary(vocabulary: Path) -> None:
    bpe = Tokenizer.from_file(str(vocabulary))
    assert {mark: bpe.token_to_id(mark) for mark in prepare.MARKS} == prepare.MARK_IDS


def test_the_test_sentences_are_as_many_as_their_names_say_and_hold_no_digits() -> None:
    folder = files("nightingale_lab.bench") / "texts"
    for name, count, longest in (("wren_200", 200, 25), ("wren_500", 500, 60)):
        lines = (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        assert len(lines) == len(set(lines)) == count
        assert all(ALPHABET.fullmatch(line) and 1 <= len(line.split()) <= longest for line in lines)


@pytest.fixture
def lines() -> prepare.Lines:
    rng = np.random.default_rng(0)
    american = [rng.integers(1, 178, size).astype(np.uint8) for size in rng.integers(10, 60, 3000)]
    british = [row if i % 4 == 0 else row[:0] for i, row in enumerate(american)]
    return prepare.Lines(texts=[f"line {i}" for i in range(3000)], american=american, british=british)


def test_lines_survive_their_file(lines: prepare.Lines, tmp_path: Path) -> None:
    lines.write(tmp_path / "lines.npz")
    back = prepare.Lines.read(tmp_path / "lines.npz")
    assert back.texts == lines.texts
    for name in ("american", "british"):
        assert all(
            np.array_equal(a, b) for a, b in zip(getattr(back, name), getattr(lines, name), strict=True)
        )


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    said = [*TemplateWriter(random.Random(0)).lines(4000), "The quick brown fox jumps over the lazy dog."]
    path.write_text(prepare.train_vocabulary(said, size=300), encoding="utf-8")
    return path


def test_the_vocabulary_has_the_familys_fixed_ids_and_every_letter(vocabulary: Path) -> None:
    bpe = Tokenizer.from_file(str(vocabulary))
    assert [bpe.token_to_id(t) for t in ("[STOP]", "[UNK]", "[SPACE]", "[START]")] == [0, 1, 2, 255]
    assert sorted(bpe.get_vocab().values()) == list(range(300))
    assert 1 not in bpe.encode("xqz'j\"k;v:w-y!").ids
