"""`nightingale book`: its options, going on after a stop, voices, the report, and mistakes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import soundfile
from book_runs import DOCUMENTS, add_voice, make, report
from sample_books import write_epub

from nightingale import TTS
from nightingale.cli import book
from nightingale.engine import load
from nightingale.install import install_command


def test_a_second_run_speaks_only_what_is_missing_and_writes_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make("sea.epub", "-o", "sea.m4b", "--read-along", "--srt")
    first = {path.name: path.read_bytes() for path in Path().glob("sea.[mrs]*") if path.is_file()}
    assert sorted(first) == ["sea.m4b", "sea.read-along.epub", "sea.srt"]
    kept = sorted(Path("sea.m4b.sentences").glob("*.flac"))
    assert len(kept) == 7
    kept[0].unlink()
    kept[1].write_bytes(kept[1].read_bytes()[:500])  # damaged
    spoken: list[str] = []
    say = TTS.say
    monkeypatch.setattr(
        TTS, "say", lambda tts, text, **more: (spoken.append(text), say(tts, text, **more))[1]
    )
    (Path("sea.m4b.sentences") / f".{kept[0].name}.01234567.part").write_bytes(b"x")
    make("sea.epub", "-o", "sea.m4b", "--read-along", "--srt")
    assert len(spoken) == 2
    assert {path.name: path.read_bytes() for path in Path().glob("sea.[mrs]*") if path.is_file()} == first
    assert not list(Path("sea.m4b.sentences").glob(".*"))
    make("sea.epub", "-o", "sea.m4b", "--seed", "7")
    assert len(spoken) == 9
    assert Path("sea.m4b").read_bytes() != first["sea.m4b"]


def test_the_cache_depends_on_text_voice_seed_and_settings(
    brief: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_voice("anna", brief)
    Path("words.toml").write_text('[words]\nkeeper = "keaper"\n')
    spoken: list[str] = []
    say = TTS.say
    monkeypatch.setattr(
        TTS, "say", lambda tts, text, **more: (spoken.append(text), say(tts, text, **more))[1]
    )
    changes = ((), ("--seed", "3"), ("--temperature", "1.5"), ("-v", "anna"), ("--lexicon", "words.toml"), ())
    counts = []
    for change in changes:
        before = len(spoken)
        make("sea.epub", "-o", "sea.m4b", *change)
        counts.append(len(spoken) - before)
    assert counts == [7, 7, 7, 7, 7, 0]


def test_voices_follow_marks_and_quotation_marks(brief: TTS) -> None:
    for name in ("anna", "karl"):
        add_voice(name, brief)
    Path("talk.md").write_text(
        "# One\n\nThe room was quiet. [voice:Anna]Who are you, stranger?[/voice] asked the woman at the table.\n\n"
        "[voice:Karl(2)+anna] I am a captain. \n\nStill the captain speaks here.\n\n# Two\n\n"
        '"Good evening to you all," said the guest. “It never ends.\n\n“It goes on.”\n'
    )
    make("talk.md", "-o", "talk.m4b", "--dialogue-voice", "anna")
    lines = [(line["voice"], line["text"]) for line in report("talk.m4b.sentences/report.jsonl")]
    assert lines == [
        ("default", "One."),
        ("default", "The room was quiet."),
        ("anna", "Who are you, stranger?"),
        ("default", "asked the woman at the table."),
        ("karl(2)+anna", "I am a captain."),
        ("karl(2)+anna", "Still the captain speaks here."),
        ("default", "Two."),
        ("anna", '"Good evening to you all,"'),
        ("default", "said the guest."),
        ("anna", "“It never ends."),
        ("anna", "“It goes on.”"),
    ]


def test_an_interrupted_book_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    say = TTS.say

    def interrupted(tts: TTS, text: str, **more: Any) -> Any:
        if "noon" in text:
            raise KeyboardInterrupt
        return say(tts, text, **more)

    with monkeypatch.context() as patched:
        patched.setattr(TTS, "say", interrupted)
        result = make("sea.epub", "-o", "sea.m4b", exit_code=130)
    assert "Start the same command again to go on." in result.stderr
    assert len(list(Path("sea.m4b.sentences").glob("*.flac"))) == 2
    assert not Path("sea.m4b").exists()
    make("sea.epub", "-o", "sea.m4b")


def test_pauses_in_the_text_are_kept() -> None:
    Path("talk.txt").write_text("This is the first sentence. [pause:2s] This is the second sentence.")
    make("talk.txt", "-o", "talk.m4b")
    one, two = report("talk.m4b.sentences/report.jsonl")
    assert two["start_s"] - one["start_s"] - one["seconds"] == pytest.approx(2, abs=0.002)


def test_the_report_has_what_was_drawn_again_and_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    say = TTS.say

    def again(tts: TTS, text: str, **more: Any) -> Any:
        audio = say(tts, text, **more)
        return replace(audio, metrics=replace(audio.metrics, retries=2)) if "noon" in text else audio

    monkeypatch.setattr(TTS, "say", again)
    monkeypatch.setattr("nightingale.text.unspoken.find_unspoken", lambda *_, **__: [])
    Path("sea.txt").write_text(
        "The keeper slept until noon.\n\nThis is [pause:1s] heard.\n\nBroken \x00[pause:99s] one."
    )
    result = make("sea.txt", "-o", "sea.m4b", exit_code=2)
    assert "a pause is too long" in result.stderr

    def failing(tts: TTS, text: str, **more: Any) -> Any:
        if "bad" in text:
            from nightingale import TextError

            raise TextError("it cannot be spoken", got=text)
        return again(tts, text, **more)

    monkeypatch.setattr(TTS, "say", failing)
    Path("sea.txt").write_text(
        "The keeper slept until noon.\n\nThis is a bad sentence here.\n\nThe last one of the day."
    )
    result = make("sea.txt", "-o", "sea.m4b", "--report", "all.jsonl", exit_code=1)
    assert json.loads(result.stdout)["sentences"] == {"spoken": 1, "drawn again": 1, "failed": 1}
    lines = report("all.jsonl")
    assert [line["status"] for line in lines] == ["drawn again", "spoken", "failed"]
    assert lines[0]["retries"] == 2
    assert "it cannot be spoken" in lines[2]["error"]
    # What was drawn again is known in a second run too, since the cache holds it.
    make("sea.txt", "-o", "sea.m4b", exit_code=1)
    assert report()[0]["status"] == "drawn again"


def test_what_is_left_out_of_a_sentence_is_in_the_report(
    english: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "load_noise", lambda: english._model)
    Path("sea.txt").write_text("The keeper slept until noon.\n\nHe wrote 你好 into the book at night.")
    told = make("sea.txt", "-o", "sea.m4b")
    assert "warning: chapter 1, 'He wrote 你好 into the book at night.': wren speaks English" in told.stderr
    assert len(json.loads(told.stdout)["warnings"]) == 1
    assert ["warnings" in line for line in report()] == [False, True]
    assert "Chinese characters" in report()[1]["warnings"][0]
    make("sea.txt", "-o", "sea.m4b", "--strict", exit_code=1)
    assert [line["status"] for line in report()] == ["spoken", "failed"]


def test_a_language_that_the_model_does_not_speak_is_told() -> None:
    write_epub(
        Path("sea.epub"), DOCUMENTS, metadata="<dc:title>Das Meer</dc:title><dc:language>de-DE</dc:language>"
    )
    assert "the book's language is 'de'" in make("sea.epub", "-o", "sea.m4b").stderr


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["gone.epub"], 2, "no such file"),
        (["sea.epub", "-o", "sea.mp3"], 2, "--chapters mp3"),
        (["sea.epub", "-o", "no/such/sea.m4b"], 8, "no such folder"),
        (["sea.epub", "--chapters", "wav"], 2, "mp3, opus, flac, m4a"),
        (["sea.epub", "--chapters", "mp3", "-o", "sea.epub"], 8, "is a folder"),
        (["sea.epub", "--sample-rate", "12345"], 2, "no such sample rate"),
        (["sea.epub", "--bitrate", "9999k"], 2, "no such bit rate"),
        (["sea.epub", "--cover", "sea.epub"], 2, "not a cover"),
        (["sea.epub", "--temperature", "-1"], 2, "temperature"),
        (["sea.epub", "--gpus-per-worker", "-1"], 2, "too few GPUs"),
        (["sea.epub", "-v", "missing"], 6, "no such voice"),
        (["sea.epub", "--dialogue-voice", "missing"], 6, "no such voice"),
        (["marks.txt"], 6, "no such voice"),
        (["paths.txt"], 2, "a mark in the book names no voice"),
        (["sea.epub", "--report", "no/such/file"], 8, "no such folder"),
        (["sea.epub", "--cache", "sea.epub"], 8, "the folder of sentences cannot be made"),
    ],
)
def test_mistakes_are_told_and_leave_no_file(arguments: list[str], exit_code: int, said: str) -> None:
    Path("marks.txt").write_text("[voice:missing] Hello.")
    Path("paths.txt").write_text("[voice:/etc/passwd] Hello.")
    before = sorted(Path().iterdir())
    result = make(*arguments, exit_code=exit_code)
    assert said in result.stderr
    assert not list(Path().rglob("*.m4b"))
    assert [path for path in sorted(Path().iterdir()) if path.suffix != ".sentences"] == before


def test_a_terminal_shows_speed_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    terminal = {
        "isatty": lambda _: True,
        "write": lambda _, text: shown.append(text),
        "flush": lambda _: None,
    }
    monkeypatch.setattr("sys.stderr", type("Terminal", (), terminal)())
    book.book(Path("sea.epub"), out=Path("sea.m4b"), model="noise")
    lines = [line for line in shown if "[" in line and "left" in line]
    assert len(lines) == 7
    assert all(re.search(r"\[#*\.*\] +\d+% 0:\d\d left, \d+\.\dx (one|two|three)", line) for line in lines)
    assert "100% 0:00 left" in lines[-1]


def test_an_install_without_a_recent_pyav_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightingale.book.book_files.version", lambda _: "15.1.0")
    assert "16 or newer" in make("sea.epub", exit_code=2).stderr
    monkeypatch.setattr("nightingale.book.book_files.find_spec", lambda _: None)
    assert install_command("book") in make("sea.epub", exit_code=2).stderr


def test_the_cache_is_flac_with_16_bits() -> None:
    make("sea.epub", "-o", "sea.m4b")
    (one, *_) = Path("sea.m4b.sentences").glob("*.flac")
    info = soundfile.info(str(one))
    assert (info.format, info.subtype, info.samplerate) == ("FLAC", "PCM_16", 24_000)
