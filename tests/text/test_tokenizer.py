"""Golden ids of the three vocabularies.

The files in data/ hold just the entries of the published vocabularies that these sentences need, with their
published ids. Set NIGHTINGALE_TOKENIZERS to a folder with the full files to check the same goldens on them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nightingale.errors import CheckpointError, EmptyText, UnsupportedLanguage
from nightingale.text.languages import LANGUAGES
from nightingale.text.tokenizer import EnglishTokenizer, MultilingualTokenizer, TurboTokenizer

DATA = Path(__file__).parent / "data"
FULL = os.environ.get("NIGHTINGALE_TOKENIZERS")
FULL_FILES = {
    "english_small.json": "english_tokenizer.json",
    "multilingual_small.json": "grapheme_mtl_merged_expanded_v1.json",
}

ENGLISH_ROWS = [
    ("Hello world.", [284, 18, 84, 28, 2, 179, 79, 9]),
    (
        "The quick brown fox, it's 42!",
        [296, 62, 2, 194, 91, 24, 2, 243, 190, 2, 182, 37, 7, 2, 60, 4, 32, 2, 267, 265, 3],
    ),
    ("hello there", [284, 18, 84, 28, 2, 172, 9]),
    (
        "Wait... what: no; yes - maybe",
        [299, 14, 60, 7, 2, 2, 193, 7, 2, 95, 7, 2, 2, 38, 61, 7, 2, 26, 88, 67, 9],
    ),
    ("“Curly” ‘quotes’ — dash", [256, 279, 121, 70, 256, 2, 4, 194, 28, 33, 61, 4, 2, 8, 2, 17, 55, 21, 9]),
    ("[laughter] That is funny.", [607, 2, 296, 21, 48, 2, 54, 2, 19, 97, 27, 38, 9]),
    ("Naïve 日本", [290, 14, 408, 76, 2, 1, 1, 9]),
    ("  behind a space", [67, 21, 168, 2, 14, 2, 248, 238, 9]),
]

MULTILINGUAL_ROWS = [
    ("en", "Hello world.", [708, 62, 84, 28, 2, 179, 79, 9]),
    ("fr", "Ça va très bien", [634, 16, 766, 14, 2, 35, 14, 2, 33, 46, 768, 32, 2, 15, 22, 50, 9]),
    (
        "de",
        "Größe: fünfzig Äpfel",
        [636, 20, 89, 762, 392, 18, 7, 2, 19, 34, 762, 27, 19, 39, 22, 20, 2, 14, 762, 29, 132, 25, 9],
    ),
    (
        "es",
        "¿Dónde está la biblioteca?",
        [635, 360, 134, 764, 27, 126, 2, 218, 14, 764, 2, 25, 14, 2, 15, 22, 15, 75, 28, 136, 183, 13],
    ),
    ("ar", "مرحبا بك", [721, 1491, 1471, 1467, 1462, 1456, 2, 1462, 1489, 9]),
    ("hi", "नमस्ते", [722, 1706, 1712, 1720, 1740, 1702, 1734, 9]),
    ("ko", "안녕하세요", [724, 1794, 1880, 1954, 1785, 1886, 1971, 1801, 1880, 1792, 1885, 1794, 1892, 9]),
    ("tr", "İstanbul", [712, 22, 773, 63, 43, 15, 167, 9]),
    ("el", "Καλημέρα", [711, 1032, 1024, 1033, 1026, 765, 1025, 764, 1038, 1024, 9]),
    ("pl", "Zażółć", [717, 39, 14, 39, 773, 28, 764, 782, 16, 764, 9]),
    ("EN", "Hello world.", [708, 62, 84, 28, 2, 179, 79, 9]),
    (None, "No tag here", [95, 2, 33, 143, 2, 92, 18, 9]),
]


def vocabularies(small: str) -> list[Path]:
    """Return the committed excerpt, and the full file where a folder of those is named."""
    return [DATA / small, *([Path(FULL) / FULL_FILES[small]] if FULL else [])]


@pytest.mark.parametrize("path", vocabularies("english_small.json"), ids=lambda path: path.name)
@pytest.mark.parametrize(("text", "ids"), ENGLISH_ROWS)
def test_english_text_becomes_the_published_ids(path: Path, text: str, ids: list[int]) -> None:
    assert EnglishTokenizer(path).encode(text) == ids


@pytest.mark.parametrize("path", vocabularies("multilingual_small.json"), ids=lambda path: path.name)
@pytest.mark.parametrize(("language", "text", "ids"), MULTILINGUAL_ROWS)
def test_multilingual_text_becomes_the_published_ids(
    path: Path, language: str | None, text: str, ids: list[int]
) -> None:
    assert MultilingualTokenizer(path).encode(text, language) == ids


@pytest.mark.parametrize("path", vocabularies("multilingual_small.json"), ids=lambda path: path.name)
def test_every_language_has_its_own_tag_in_the_vocabulary(path: Path) -> None:
    vocabulary = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
    assert len({vocabulary[f"[{code}]"] for code in LANGUAGES}) == 23


def test_encode_adds_no_start_and_stop() -> None:
    ids = EnglishTokenizer(DATA / "english_small.json").encode("Hello world.")
    assert not {255, 0} & set(ids)


def test_the_english_model_refuses_another_language() -> None:
    tokenizer = EnglishTokenizer(DATA / "english_small.json")
    assert tokenizer.encode("hello there", "en") == tokenizer.encode("hello there")
    with pytest.raises(UnsupportedLanguage, match="allowed: en"):
        tokenizer.encode("Bonjour", "fr")


def test_half_a_surrogate_pair_is_dropped_not_fatal() -> None:
    tokenizer = EnglishTokenizer(DATA / "english_small.json")
    assert tokenizer.encode("hel\ud83dlo there") == tokenizer.encode("hello there")


def test_blank_text_is_refused_by_every_tokenizer(turbo_folder: Path) -> None:
    for tokenizer in (
        EnglishTokenizer(DATA / "english_small.json"),
        MultilingualTokenizer(DATA / "multilingual_small.json"),
        TurboTokenizer(turbo_folder),
    ):
        with pytest.raises(EmptyText):
            tokenizer.encode(" \n ")


def test_a_missing_vocabulary_is_a_checkpoint_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        EnglishTokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version":"1.0"}', "\x00\x01"])
def test_a_corrupt_vocabulary_is_a_checkpoint_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        MultilingualTokenizer(tmp_path / "tokenizer.json")


def test_a_vocabulary_without_a_space_token_is_refused(tmp_path: Path) -> None:
    data = json.loads((DATA / "english_small.json").read_text(encoding="utf-8"))
    del data["model"]["vocab"]["[SPACE]"]
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] != "[SPACE]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match=r"\[SPACE\]"):
        EnglishTokenizer(tmp_path / "tokenizer.json")


# Turbo: byte-level BPE, built small in the same file format. In this alphabet Ġ is a space.
TURBO_TOKENS = ["H", "h", "i", "e", "l", "o", "a", "t", "u", "g", ".", ",", "'", '"', "[", "]", "Ġ", "Ã", "©"]
TURBO_MERGES = ["h i", "H i", "l l", "e ll", "Ġ t", "Ġt h", "Ã ©"]


@pytest.fixture
def turbo_folder(tmp_path: Path) -> Path:
    tokens = TURBO_TOKENS + [merge.replace(" ", "") for merge in TURBO_MERGES] + ["<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    added = {"[laugh]": len(tokens), "[clear throat]": len(tokens) + 1}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(TURBO_MERGES) + "\n")
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    return tmp_path


TURBO_ROWS = [
    ("hi", ["Hi", "."]),
    ("Hi th", ["Hi", "Ġth", "."]),
    ("H é", ["H", "Ġ", "Ã©", "."]),
    ("Hi [laugh] th", ["Hi", "Ġ", "[laugh]", "Ġth", "."]),
    ("Hi[clear throat]hi", ["Hi", "[clear throat]", "hi", "."]),
    ("Hi [laug] hi", ["Hi", "Ġ", "[", "l", "a", "u", "g", "]", "Ġ", "hi", "."]),
    ("Hi… ell", ["Hi", ",", "Ġ", "Ġ", "ell", "."]),
    ("Hi<|endoftext|>hi", ["Hi", "<|endoftext|>", "hi", "."]),
]


@pytest.mark.parametrize(("text", "tokens"), TURBO_ROWS)
def test_turbo_text_becomes_byte_level_tokens_and_tags(
    turbo_folder: Path, text: str, tokens: list[str]
) -> None:
    vocabulary = json.loads((turbo_folder / "vocab.json").read_text())
    vocabulary |= json.loads((turbo_folder / "added_tokens.json").read_text())
    assert TurboTokenizer(turbo_folder).encode(text) == [vocabulary[token] for token in tokens]


def test_turbo_tags_have_the_flags_of_the_tokenizer_config(turbo_folder: Path) -> None:
    plain = TurboTokenizer(turbo_folder).encode("Hi [laugh] hi")
    number = str(json.loads((turbo_folder / "added_tokens.json").read_text())["[laugh]"])
    flags = {"added_tokens_decoder": {number: {"content": "[laugh]", "lstrip": True, "rstrip": True}}}
    (turbo_folder / "tokenizer_config.json").write_text(json.dumps(flags))
    assert len(TurboTokenizer(turbo_folder).encode("Hi [laugh] hi")) == len(plain) - 2


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "added_tokens.json"])
def test_a_missing_turbo_file_is_a_checkpoint_error_that_names_it(turbo_folder: Path, name: str) -> None:
    (turbo_folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        TurboTokenizer(turbo_folder)


@pytest.mark.parametrize(
    ("name", "content"), [("vocab.json", "[1]"), ("merges.txt", "q z\n"), ("merges.txt", "a b c\n")]
)
def test_a_corrupt_turbo_file_is_a_checkpoint_error(turbo_folder: Path, name: str, content: str) -> None:
    (turbo_folder / name).write_text(content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        TurboTokenizer(turbo_folder)


def test_added_tags_of_another_vocabulary_are_refused(turbo_folder: Path) -> None:
    (turbo_folder / "added_tokens.json").write_text(json.dumps({"[laugh]": 50257}))
    with pytest.raises(CheckpointError, match="50257"):
        TurboTokenizer(turbo_folder)
