"""Text that cannot be spoken: warnings in Python, on the command line and over HTTP, and strict requests."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nightingale import TTS
from nightingale.cli.commands import app
from nightingale.engine import load
from nightingale.errors import TextError, UnsupportedLanguage


@pytest.mark.parametrize(
    ("text", "what", "got", "at"),
    [
        ("Hello 你好.", "wren speaks English and leaves out Chinese characters; the model multilingual speaks "
         "Chinese", "你好", 6),
        ("Say Привет twice: Привет.", "wren speaks English and leaves out Cyrillic letters; the model "
         "multilingual speaks Russian", "Привет", 4),
        ("Good 🙂 morning 🙃.", "symbols without a spoken form are left out", "🙂 🙃", 5),
        ("See https://a.org/b?c=d&e=f now.", "the query of a link is not read", "?c=d&e=f", 19),
        ("A <foo>strange</foo> tag.", "unknown tags are left out", "<foo>", 2),
        ("Run:\n```sh\nls -l\n```\nDone.", "a code block is not read", "ls -l", 5),
    ],
)  # fmt: skip
def test_what_is_not_spoken_is_named_once_with_its_place(
    english: TTS, text: str, what: str, got: str, at: int
) -> None:
    (warning,) = english.say(text, seed=1).warnings
    assert (warning.what, warning.got, warning.at) == (what, got, at)
    with closing(english.stream(text)) as stream:
        assert [str(one) for one in stream.warnings] == [f"{what}: {got} (character {at + 1})"]


@pytest.mark.parametrize(
    "text",
    ["Plain words.", "Café, naïve, Zürich, Łódź.", "π ≈ 3.14 and 5 µm → 20 €", "“Quotes” – dashes…", "<b>Bold</b> ™",
     "https://a.org/b", "• one\n• two", "x ≤ 5", "[pause:100ms] Hi."],
)  # fmt: skip
def test_text_that_is_spoken_whole_has_no_warning(english: TTS, text: str) -> None:
    assert english.say(text, strict=True, seed=1).warnings == ()


def test_text_in_another_script_names_the_model_that_speaks_it(english: TTS) -> None:
    with pytest.raises(UnsupportedLanguage, match=r"wren speaks English.*你好.*-m multilingual -l zh"):
        english.say("你好,世界")


def test_code_is_left_out_or_read(english: TTS) -> None:
    text = "Run this now.\n```sh\nmake one\n\nmake two\n```\nDone with it all."
    for read_code, said in (
        (False, "Run this now. Done with it all."),
        (True, "Run this now. make one. make two. Done with it all."),
    ):
        with closing(english.stream(text, read_code=read_code)) as stream:
            segments = [chunk.begins.text for chunk in stream if chunk.begins]
            assert " ".join(segments) == said
            assert len(stream.warnings) == (not read_code)


def test_a_strict_request_is_refused(english: TTS) -> None:
    with pytest.raises(TextError, match=r"would not be spoken.*🙂.*character 4"):
        english.say("Hi 🙂.", strict=True)


def test_a_session_collects_each_kind_of_warning_once(english: TTS) -> None:
    with english.session() as session:
        session.push("One 你好 here, and more words after it. Two 世界 here, and more words again. 🙂 Three.")
        session.end()
        list(session)
        assert [warning.got for warning in session.warnings] == ["你好", "🙂"]
    with english.session(strict=True) as session, pytest.raises(TextError, match="not be spoken"):
        session.push("One 你好 here, and more words after it. Two 世界 here, and more words again.")


@pytest.fixture
def noise_is_english(english: TTS, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(load, "load_noise", lambda: english._model)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("noise_is_english")
def test_say_prints_warnings_once_and_in_json() -> None:
    result = CliRunner().invoke(app, ["say", "Hi 🙂 and 🙂.", "-m", "noise", "--json", "-q"])
    assert result.exit_code == 0, result.output
    assert result.stderr.count("warning: ") == 1
    assert "warning: symbols without a spoken form are left out: 🙂 (character 4)" in result.stderr
    (warning,) = json.loads(result.stdout.splitlines()[-1])["warnings"]
    assert warning == {"what": "symbols without a spoken form are left out", "got": "🙂", "at": 3}


@pytest.mark.usefixtures("noise_is_english")
def test_say_strict_refuses_and_writes_nothing(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["say", "Hi 🙂.", "-m", "noise", "--strict"])
    assert result.exit_code == TextError.exit_code
    assert "would not be spoken" in result.stderr
    assert not list(tmp_path.iterdir())
