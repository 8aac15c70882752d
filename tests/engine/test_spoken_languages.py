"""Texts of other languages than English through the public interface: numbers in words, and missing characters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nightingale import TTS
from nightingale.cli.commands import app
from nightingale.engine import load
from nightingale.errors import TextError
from nightingale.text.frontend import MULTILINGUAL_FILE, open_frontend
from nightingale.text.multilingual import normalize
from nightingale.text.tokenizer import EnglishTokenizer, MultilingualTokenizer

DATA = Path(__file__).parents[1] / "text" / "data"
GERMAN = "Am 3. Mai um 9:30 Uhr zahlt Dr. Mai 1.250,50 €, d. h. 5 % mehr."
SPOKEN = (
    "Am dritten Mai um neun Uhr dreißig zahlt Doktor Mai eintausendzweihundertfünfzig Euro und fünfzig Cent, "
    "das heißt fünf Prozent mehr."
)


@pytest.fixture(scope="module")
def multilingual(brief: TTS) -> Iterator[TTS]:
    """Return an engine that reads text as the multilingual model does, without its weights."""
    lacks = MultilingualTokenizer(DATA / "multilingual_small.json").lacks
    frontend = replace(brief._model.frontend, spell_numbers=normalize, family="multilingual", lacks=lacks)
    with TTS.over(replace(brief._model, frontend=frontend)) as tts:
        yield tts


def said(tts: TTS, text: str, **request: Any) -> str:
    with closing(tts.stream(text, seed=1, **request)) as stream:
        return " ".join(chunk.begins.text for chunk in stream if chunk.begins)


def test_numbers_are_spoken_in_the_language_of_the_request(multilingual: TTS) -> None:
    assert said(multilingual, GERMAN, language="de") == SPOKEN
    assert said(multilingual, "À 14h30, 21 % de 1 000 €.", language="fr") == (
        "À quatorze heures trente, vingt et un pour cent de mille euros."
    )
    assert said(multilingual, "2024年3月15日", language="zh") == "二零二四年三月十五日"


def test_numbers_stay_as_written_if_that_is_asked_for_or_no_language_is_known(multilingual: TTS) -> None:
    assert said(multilingual, GERMAN, language="de", normalize=False) == GERMAN
    assert said(multilingual, GERMAN) == GERMAN
    assert said(multilingual, "It costs 5 %.", language="en") == "It costs 5 %."


def test_the_profile_exact_reads_text_as_upstream_does(multilingual: TTS) -> None:
    with TTS.over(multilingual._model, "exact") as exact:
        assert said(exact, GERMAN, language="de") == GERMAN
        assert said(exact, GERMAN, language="de", normalize=True) == SPOKEN


def test_only_the_multilingual_front_end_writes_numbers_out_and_its_ids_are_upstreams(tmp_path: Path) -> None:
    for name in (MULTILINGUAL_FILE, "tokenizer.json"):
        (tmp_path / name).write_bytes((DATA / "multilingual_small.json").read_bytes())
    frontend = open_frontend("multilingual", tmp_path)
    assert frontend.spell("5 %", "de") == "fünf Prozent"
    assert frontend.encode("5 %", "de") == frontend.tokenizer.encode("5 %", "de")
    assert open_frontend("english", tmp_path).spell("5 %", "de") == "5 %"


def test_ssml_is_read_in_the_language_of_the_request(multilingual: TTS) -> None:
    text = (
        '<speak>Am <say-as interpret-as="date" format="dm">3.5.</say-as> <break/> '
        'Ruf <say-as interpret-as="telephone">+49 30</say-as> an.</speak>'
    )
    assert said(multilingual, text, language="de") == "Am dritten Mai, Ruf plus vier neun, drei null an."
    date = '<speak><say-as interpret-as="date">24.12.2024</say-as></speak>'
    for language, words in {
        "es": "veinticuatro de diciembre de dos mil veinticuatro",
        "pl": "dwudziestego czwartego grudnia dwa tysiące dwudziestego czwartego",
        "ja": "にせんにじゅうよねんじゅうにがつにじゅうよっか",
    }.items():
        assert said(multilingual, date, language=language) == words
    partial = '<speak><say-as interpret-as="date" format="md">3-5</say-as></speak>'
    for language, words in {
        "es": "cinco de marzo",
        "ko": "삼 월 오 일",
        "zh": "三月五日",
        "fr": "cinq mars",
    }.items():
        assert said(multilingual, partial, language=language) == words


def test_characters_that_a_vocabulary_lacks_are_named(multilingual: TTS, brief: TTS) -> None:
    (warning,) = multilingual.say("Ein ☃ hat 5 %.", language="de", seed=1).warnings
    assert (warning.what, warning.got, warning.at) == ("the model has no sound for some characters", "☃", 4)
    (warning,) = multilingual.say("Es hat 5 %.", language="de", normalize=False, seed=1).warnings
    assert warning.got == "5 %"
    with pytest.raises(TextError, match=r"would not be spoken.*☃"):
        multilingual.say("Ein ☃.", language="de", strict=True)
    lacks = EnglishTokenizer(DATA / "english_small.json").lacks
    frontend = replace(brief._model.frontend, family="english", lacks=lacks)
    with TTS.over(replace(brief._model, frontend=frontend)) as english:
        (warning,) = english.say("A 你 here.", seed=1).warnings
        assert (warning.got, warning.at) == ("你", 2)
    # A vocabulary of bytes lacks nothing.
    assert brief.say("A 你 ☃ here.", seed=1).warnings == ()


def test_say_writes_numbers_out_and_warns_about_missing_characters(
    multilingual: TTS, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(load, "load_noise", lambda: multilingual._model)
    monkeypatch.chdir(tmp_path)
    command = ["say", "Es hat 5 %.", "-m", "noise", "-l", "de", "-o", "a.wav", "-q"]
    assert "warning" not in CliRunner().invoke(app, command).stderr.replace("test signal", "")
    assert "characters: 5 % (character 8)" in CliRunner().invoke(app, [*command, "--no-normalize"]).stderr
    result = CliRunner().invoke(app, ["say", "Ein ☃.", "-m", "noise", "-l", "de", "-o", "a.wav", "-q"])
    assert result.exit_code == 0, result.output
    assert "warning: the model has no sound for some characters: ☃ (character 5)" in result.stderr
