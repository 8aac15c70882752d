"""Tags such as [laugh]: single tokens where a model knows them, and a warning where it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nightingale import TTS, TextError
from nightingale.engine.requests.early_checks import tags_of
from nightingale.engine.requests.segments import segment_text
from nightingale.text.frontend import open_frontend
from nightingale.text.sound_tags import SOUND_TAGS

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,'![]Ġ"


@pytest.fixture
def turbo_folder(tmp_path: Path) -> Path:
    """Write a vocabulary of single letters and of all tags."""
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)} | {"<|endoftext|>": len(LETTERS)}
    added = {tag: len(vocabulary) + number for number, tag in enumerate(SOUND_TAGS)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    return tmp_path


def test_every_tag_passes_through_segmentation_as_one_token(turbo_folder: Path) -> None:
    frontend = open_frontend("turbo", turbo_folder)
    ids = json.loads((turbo_folder / "added_tokens.json").read_text())
    assert frontend.tags == tags_of("turbo") == SOUND_TAGS
    sentence = "This is a sentence of some length, and then comes a sound "
    text = "".join(f"{sentence}{tag} and more. {tag} " for tag in SOUND_TAGS)
    for split_chars in (None, 60, 100, 280):
        segments = list(segment_text(frontend, text, None, split_chars=split_chars, fill=True))
        found = [number for segment in segments for number in segment.text_ids if number in ids.values()]
        assert found == [ids[tag] for tag in SOUND_TAGS for _ in range(2)]
        assert all(segment.text.count("[") == segment.text.count("]") for segment in segments)


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("That is funny. [laugh] Oh, dear.", "[laugh]"),
        ("[sigh] I see. [clear throat] Well.", "[sigh] [clear throat]"),
        ("What? [Gasp]", "[Gasp]"),
    ],
)
def test_a_model_without_tags_leaves_them_out_and_warns(english: TTS, text: str, got: str) -> None:
    stream = english.stream(text, seed=1)
    spoken = " ".join(chunk.begins.text for chunk in stream if chunk.begins)
    (warning,) = stream.warnings
    assert warning.what == (
        "wren does not know these tags and leaves them out; the models turbo and nano know [laugh]"
    )
    assert (warning.got, warning.at) == (got, text.index("["))
    assert not any(word in spoken.lower() for word in ("laugh", "sigh", "throat", "gasp"))
    with pytest.raises(TextError, match="does not know these tags"):
        english.say(text, strict=True)


def test_a_model_without_a_normalizer_reads_them_and_warns(brief: TTS) -> None:
    (warning,) = brief.say("Well. [laugh] Oh.", seed=1).warnings
    assert "reads them as text" in warning.what


@pytest.mark.parametrize("text", ["A [happy](https://a.org) link.", "Laugh and sigh.", "It is so [sic]."])
def test_other_text_has_no_warning_about_tags(english: TTS, text: str) -> None:
    assert not any("tags" in warning.what for warning in english.say(text, seed=1).warnings)
