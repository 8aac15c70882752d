"""Limits of the text front end, and the choice of front end by model family."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightingale.errors import CheckpointError, ConfigError, EmptyText, TextTooLong
from nightingale.text.frontend import Frontend, open_frontend
from nightingale.text.tokenizer import EnglishTokenizer

DATA = Path(__file__).parent / "data"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes((DATA / "english_small.json").read_bytes())
    return tmp_path


def test_the_frontend_returns_the_tokenizers_ids(folder: Path) -> None:
    assert open_frontend("english", folder).encode("Hello world.") == [284, 18, 84, 28, 2, 179, 79, 9]


@pytest.mark.parametrize("text", ["", "   ", "\n", "?!", "...", "🙂", "\u200b", "- -"])
def test_text_without_a_letter_or_digit_is_refused(folder: Path, text: str) -> None:
    for family in ("english", "wren"):
        with pytest.raises(EmptyText, match="nothing to say"):
            open_frontend(family, folder).encode(text)


def test_text_over_the_limit_is_refused_with_both_numbers(folder: Path) -> None:
    frontend = open_frontend("english", folder, max_chars=5)
    assert frontend.prepare("hello") == "hello"
    with pytest.raises(TextTooLong, match="got 6 characters; allowed: at most 5"):
        frontend.encode("hello!")


def test_only_wren_spells_digits_out(folder: Path) -> None:
    assert open_frontend("english", folder).prepare("42") == "42"
    assert open_frontend("wren", folder).prepare("42") == "forty-two"


def test_a_frontend_can_be_built_from_parts() -> None:
    frontend = Frontend(tokenizer=EnglishTokenizer(DATA / "english_small.json"), spell_out=str.upper)
    assert frontend.prepare("hello") == "HELLO"


@pytest.mark.parametrize("family", ["english", "multilingual", "turbo", "nano", "wren"])
def test_each_family_names_a_missing_file(tmp_path: Path, family: str) -> None:
    with pytest.raises(CheckpointError, match=r"\.json"):
        open_frontend(family, tmp_path)


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="english, multilingual, turbo, nano, wren"):
        open_frontend("klingon", tmp_path)
