"""Text ids without the `tokenizers` package equal those of the product."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from nightingale.text.frontend import ENGLISH_FILE
from nightingale.text.tokenizer import EnglishTokenizer
from nightingale_lab.train.bpe import BpeEncoder
from nightingale_lab.train.export import with_normalizer
from nightingale_lab.train.prepare import train_vocabulary

WORDS = [
    "the quick brown fox",
    "jumps over",
    "a lazy dog",
    "together",
    "there",
    "other",
    "mother's",
    "well then",
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "wren_tokenizer.json"
    words = [a + b + c for a in "bcdfghlmnprst" for b in "aeiou" for c in "bdglmnprst"]
    path.write_text(train_vocabulary([*WORDS * 50, *words], size=300))
    return path


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox jumps over the lazy dog.",
        "together, there; the other: mother's - well... then",
        'He said, "Well then!" and "Why not?"',
        "A well-known fox",
        "don't  stop\tnow",
        "a",
        "unknown 7 digits & marks",
        "wait --- what?!",
    ],
)
def test_ids_equal_those_of_the_tokenizers_package(text: str, vocabulary: Path, tmp_path: Path) -> None:
    (tmp_path / ENGLISH_FILE).write_text(with_normalizer(vocabulary))
    assert BpeEncoder(vocabulary).encode(text) == EnglishTokenizer(tmp_path / ENGLISH_FILE).encode(text)


def test_words_are_respelled_as_at_inference(vocabulary: Path, tmp_path: Path) -> None:
    (tmp_path / ENGLISH_FILE).write_text(with_normalizer(vocabulary))
    text = "You couldn't, Couldn't you?"
    ids = BpeEncoder(tmp_path / ENGLISH_FILE).encode(text)
    assert ids == EnglishTokenizer(tmp_path / ENGLISH_FILE).encode(text)
    assert ids != BpeEncoder(vocabulary).encode(text)


def test_bpe_dropout_gives_other_ids_of_the_same_letters(vocabulary: Path) -> None:
    bpe = BpeEncoder(vocabulary)
    names = {number: name for name, number in json.loads(vocabulary.read_text())["model"]["vocab"].items()}
    text = "the other mother is here, the other there."
    usual = bpe.encode(text)
    varied = [bpe.encode(text, random.Random(seed)) for seed in range(20)]
    assert any(ids != usual for ids in varied)
    for ids in varied:
        assert "".join(names[i] for i in ids) == "".join(names[i] for i in usual)
    assert bpe.encode(text, random.Random(3)) == bpe.encode(text, random.Random(3))
