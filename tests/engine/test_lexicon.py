"""Lexicons, from Python, the command line and HTTP."""

from __future__ import annotations

import json
import re
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cpu_time import cpu_seconds
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nightingale import TTS
from nightingale.cli.commands import app
from nightingale.engine import load
from nightingale.errors import ConfigError, TextTooLong
from nightingale.text.respelling import (
    MAX_SAID_CHARS,
    MAX_WRITTEN_CHARS,
    Lexicon,
    LexiconEntry,
    Respelling,
    lexicon_of,
)

FILE = """
[words]
nginx = "engine X"
Polish = "Pole ish"

[[entry]]
written = "kube"
said = "koob"
part = true

[[entry]]
written = "GIF"
said = "jif"
case = "any"
"""


@pytest.fixture
def lexicon(tmp_path: Path) -> Path:
    path = tmp_path / "words.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def spoken(tts: TTS, text: str, **options: Any) -> str:
    with closing(tts.stream(text, **options)) as stream:
        return " ".join(chunk.begins.text for chunk in stream if chunk.begins)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Nginx and NGINX.", "engine X and engine X."),
        ("The Polish polish.", "The Pole ish polish."),
        ("Use kubectl and nginxes.", "Use koobctl and nginxes."),
        ("A gif is a GIF.", "A jif is a jif."),
    ],
)
def test_case_and_word_rules(english: TTS, lexicon: Path, text: str, said: str) -> None:
    assert spoken(english, text, lexicon=lexicon) == said


def test_a_mapping_is_a_lexicon_and_the_longest_word_counts(english: TTS) -> None:
    words = {"new york": "Gotham", "york": "yorrick"}
    assert spoken(english, "New York, York.", lexicon=words) == "Gotham, yorrick."


def test_a_session_has_a_lexicon(english: TTS, lexicon: Path) -> None:
    with english.session(lexicon=lexicon) as session:
        session.push("We run nginx here.")
        session.end()
        assert [chunk.begins.text for chunk in session if chunk.begins] == ["We run engine X here."]


def test_a_respelled_word_needs_no_warning_and_others_keep_their_place(english: TTS) -> None:
    audio = english.say("你好, dear 世界.", lexicon={"你好": "nee how, my very dear"})
    assert [(warning.got, warning.at) for warning in audio.warnings] == [("世界", 9)]


@pytest.mark.parametrize(
    "text", ["words = 3", "[words]\na = 1", '[[entry]]\nwritten = "a"', "[other]\na = 1", "no toml",
             '[[entry]]\nwritten = "a"\nsaid = "b"\ncase = "upper"'],
)  # fmt: skip
def test_an_invalid_lexicon_is_refused(english: TTS, tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="lexicon"):
        english.say("Hi.", lexicon=path)
    assert CliRunner().invoke(app, ["lexicon", "check", str(path)]).exit_code == ConfigError.exit_code


def test_the_check_shows_what_changes(lexicon: Path) -> None:
    result = CliRunner().invoke(app, ["lexicon", "check", str(lexicon), "Run nginx."])
    assert result.exit_code == 0, result.output
    assert result.stdout == "character 5: nginx → engine X\n"
    assert "4 entries" in result.stderr
    result = CliRunner().invoke(app, ["lexicon", "check", str(lexicon), "-", "--json"], input="A gif.")
    assert json.loads(result.stdout) == {
        "entries": 4,
        "changes": [{"at": 2, "written": "gif", "said": "jif"}],
    }


def test_say_takes_a_lexicon(
    english: TTS, lexicon: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "load_noise", lambda: english._model)
    monkeypatch.chdir(tmp_path)
    digests = []
    for text, options in (("Run nginx.", ["--lexicon", str(lexicon)]), ("Run engine X.", [])):
        result = CliRunner().invoke(app, ["say", text, "-m", "noise", "--json", "--seed", "1", *options])
        assert result.exit_code == 0, result.output
        digests.append(json.loads(result.stdout.splitlines()[-1])["sha256"])
    assert digests[0] == digests[1]
    assert CliRunner().invoke(app, ["say", "Hi.", "-m", "noise", "--lexicon", "none.toml"]).exit_code == 2


LETTERS = st.sampled_from("abAB_ -.ßẞſsKİıiIΣσςéÉ1你")
ENTRIES = st.lists(
    st.builds(
        LexiconEntry,
        written=st.text(LETTERS, min_size=1, max_size=4),
        said=st.just("x"),
        match_case=st.booleans(),
        part_of_word=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@given(ENTRIES, st.text(LETTERS, max_size=60))
def test_words_are_found_as_by_a_regular_expression(entries: list[LexiconEntry], text: str) -> None:
    """The longest word counts, then the order of the lexicon; `re` says which letters differ only in their case."""
    lexicon = Lexicon(entries)
    patterns = []
    for entry in lexicon.entries:
        word = re.escape(entry.written) if entry.match_case else f"(?i:{re.escape(entry.written)})"
        patterns.append(word if entry.part_of_word else rf"(?<!\w){word}(?!\w)")
    found = re.finditer("|".join(patterns), text)
    assert lexicon.changes(text) == [Respelling(match.start(), match[0], "x") for match in found]


def test_the_cost_of_a_text_does_not_depend_on_the_number_of_words() -> None:
    def cpu_s(words: int) -> float:
        lexicon = lexicon_of({f"{'-' * 90}{number}": "x" for number in range(words)})
        assert lexicon.changes("-" * 20_000) == []
        return cpu_seconds(lambda: lexicon.changes("-" * 20_000), rounds=3)

    assert cpu_s(800) < 10 * max(0.002, cpu_s(20))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"-" * (MAX_WRITTEN_CHARS + 1): "dash"}, "a word of the lexicon is too long"),
        ({"a": "b" * (MAX_SAID_CHARS + 1)}, "a respelling of the lexicon is too long"),
    ],
)
def test_words_and_respellings_have_a_largest_length(words: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        lexicon_of(words)


def test_a_text_that_respellings_make_too_long_is_refused_before_it_is_built(english: TTS) -> None:
    words, text = {"a": "b" * MAX_SAID_CHARS}, "a " * 20_000
    tracemalloc.start()
    try:
        with pytest.raises(TextTooLong, match="20020000 characters with the respellings of the lexicon"):
            english.open(text, lexicon=words)
        assert tracemalloc.get_traced_memory()[1] < 15_000_000
    finally:
        tracemalloc.stop()
