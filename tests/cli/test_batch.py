"""`nightingale say --batch`: recordings, the manifest, and going on after a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import soundfile
from typer.testing import CliRunner, Result

from nightingale import TTS
from nightingale.cli.commands import app
from nightingale.engine import load


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brief: TTS) -> None:
    monkeypatch.setattr(load, "load_noise", lambda: brief._model)
    monkeypatch.chdir(tmp_path)


def batch(file: str, *arguments: str) -> Result:
    command = ["say", "--batch", file, "-o", "out", "-m", "noise", "--json", *arguments]
    return CliRunner().invoke(app, command)


def counts(result: Result) -> tuple[int, int, int]:
    """Return how many recordings were written, kept and failed."""
    told = json.loads(result.stdout)
    return told["written"], told["kept"], told["failed"]


def manifest() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("out/manifest.jsonl").read_text().splitlines()]


def test_each_line_of_a_text_becomes_a_recording(brief: TTS) -> None:
    Path("lines.txt").write_text("One.\n\n  Two.\nThree.\n")
    result = batch("lines.txt", "--seed", "7")
    assert (result.exit_code, counts(result)) == (0, (3, 0, 0)), result.output
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "0001.wav", "0002.wav", "0003.wav", "manifest.jsonl",
    ]  # fmt: skip
    assert [(entry["id"], entry["text"], entry["seed"]) for entry in manifest()] == [
        ("0001", "One.", 7), ("0002", "Two.", 7), ("0003", "Three.", 7),
    ]  # fmt: skip
    assert manifest()[1]["sha256"] == brief.say("Two.", seed=7).sha256
    assert soundfile.info("out/0002.wav").duration == pytest.approx(manifest()[1]["audio_seconds"], abs=0.001)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_line_may_have_an_id_and_controls(suffix: str, brief: TTS) -> None:
    if suffix == ".csv":
        Path("lines.csv").write_text('id,text,speed,seed\nhello,"Hello, you.",2,\nbye,Bye.,,9\n')
    else:
        rows = [{"id": "hello", "text": "Hello, you.", "speed": 2}, {"id": "bye", "text": "Bye.", "seed": 9}]
        Path("lines.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = batch(f"lines{suffix}", "--seed", "7", "--format", "flac")
    assert counts(result) == (2, 0, 0), result.output
    assert [entry["file"] for entry in manifest()] == ["hello.flac", "bye.flac"]
    assert manifest()[0]["sha256"] == brief.say("Hello, you.", seed=7, speed=2.0).sha256
    assert manifest()[1]["sha256"] == brief.say("Bye.", seed=9).sha256


def test_a_batch_goes_on_where_it_stopped() -> None:
    Path("lines.txt").write_text("One.\nTwo.\nThree.\n")
    batch("lines.txt", "--seed", "7")
    before = Path("out/0001.wav").stat().st_mtime_ns
    assert counts(batch("lines.txt", "--seed", "7")) == (0, 3, 0)
    Path("out/0002.wav").unlink()
    Path("lines.txt").write_text("One.\nTwo.\nAnother.\nFour.\n")
    assert counts(batch("lines.txt", "--seed", "7")) == (3, 1, 0)
    assert Path("out/0001.wav").stat().st_mtime_ns == before
    assert counts(batch("lines.txt", "--seed", "8")) == (4, 0, 0)


def test_a_manifest_that_was_cut_off_is_continued() -> None:
    Path("lines.txt").write_text("One.\nTwo.\n")
    batch("lines.txt", "--seed", "7")
    whole = Path("out/manifest.jsonl").read_text()
    Path("out/manifest.jsonl").write_text(whole[:-20])
    assert counts(batch("lines.txt", "--seed", "7")) == (1, 1, 0)
    assert counts(batch("lines.txt", "--seed", "7")) == (0, 2, 0)


def test_a_text_that_cannot_be_spoken_fails_alone_and_is_tried_again() -> None:
    Path("lines.txt").write_text("One.\n...\nThree.\n")
    result = batch("lines.txt")
    assert (result.exit_code, counts(result)) == (1, (2, 0, 1))
    assert "nothing to say" in result.stderr
    assert "nothing to say" in manifest()[1]["error"]
    assert counts(batch("lines.txt")) == (0, 2, 1)


@pytest.mark.parametrize(
    ("name", "contents", "said"),
    [
        ("a.xml", "<a/>", "not a kind of batch file"),
        ("a.txt", "\n\n", "no texts"),
        ("a.csv", "words\nHello.\n", "unknown column"),
        ("a.csv", "text,id\nHello.,../up\n", "not an id"),
        ("a.csv", "text,id\nHello.,nul\n", "not an id"),
        ("a.csv", "text,id\nHello.,a\nBye.,a\n", "same id"),
        ("a.csv", "text,speed\nHello.,fast\n", "speed is not a number"),
        ("a.csv", "text,speed\nHello.,99\n", "speed is out of range"),
        ("a.jsonl", '{"text": 5}', "no text"),
        ("a.jsonl", "[1]", "not a JSON object"),
        ("a.jsonl", "{", "not valid JSON"),
        ("b.txt", "", "cannot be read"),
    ],
)
def test_mistakes_in_a_batch_are_told_before_a_model_is_loaded(
    name: str, contents: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nightingale.engine.tts.load_model", lambda *_, **__: pytest.fail("a model was loaded")
    )
    if name != "b.txt":
        Path(name).write_text(contents)
    result = batch(name)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert not Path("out").exists()


def test_a_batch_needs_a_folder() -> None:
    Path("a.txt").write_text("One.\n")
    for arguments in (
        ["--batch", "a.txt"],
        ["--batch", "a.txt", "-o", "-"],
        ["Hi.", "--batch", "a.txt", "-o", "b"],
    ):
        result = CliRunner().invoke(app, ["say", *arguments])
        assert result.exit_code == 2
        assert "--batch needs a folder" in result.stderr
    assert CliRunner().invoke(app, ["say", "--batch", "a.txt", "-o", "a.txt"]).exit_code == 8


def test_what_is_not_spoken_is_told_and_recorded(english: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "load_noise", lambda: english._model)
    Path("lines.txt").write_text("Hello.\nHello 你好 there.\n")
    result = batch("lines.txt", "--seed", "7")
    assert result.stderr.count("warning: ") == 1
    assert "0002: warning: wren speaks English and leaves out Chinese characters" in result.stderr
    assert ["warnings" in entry for entry in manifest()] == [False, True]


@pytest.mark.parametrize("change", [["--profile", "exact"], ["--no-normalize"], ["--speed", "2"]])
def test_another_setting_speaks_the_lines_again(change: list[str]) -> None:
    Path("lines.txt").write_text("One.\nTwo.\n")
    assert counts(batch("lines.txt", "--seed", "7")) == (2, 0, 0)
    assert counts(batch("lines.txt", "--seed", "7", *change)) == (2, 0, 0)
    assert counts(batch("lines.txt", "--seed", "7", *change)) == (0, 2, 0)
