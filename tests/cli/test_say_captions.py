"""`nightingale say --srt FILE --vtt FILE --timestamps FILE`."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from nightingale.cli.commands import app

TEXT = "The first one costs five. The second one is free."


def say(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["say", *arguments, "-m", "noise", "-q"])


def test_captions_are_written_beside_the_audio(tmp_path: Path) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("wav", "srt", "vtt", "json")}
    options = ["--srt", str(files["srt"]), "--vtt", str(files["vtt"]), "--timestamps", str(files["json"])]
    assert say(TEXT, "-o", str(files["wav"]), "--seed", "1", *options).exit_code == 0
    words = json.loads(files["json"].read_text())["words"]
    assert [TEXT[word["text_start"] : word["text_end"]] for word in words] == TEXT.split()
    assert files["srt"].read_text().startswith("1\n00:00:00,")
    assert "The second one is free.\n" in files["srt"].read_text()
    assert files["vtt"].read_text().startswith("WEBVTT\n\n00:00:00.")
    plain = tmp_path / "plain.wav"
    assert say(TEXT, "-o", str(plain), "--seed", "1").exit_code == 0
    assert plain.read_bytes() == files["wav"].read_bytes()


def test_captions_that_cannot_be_written_are_refused_before_a_model_is_loaded(
    tmp_path: Path,
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("One.\n")
    for arguments in (
        ("Hello.", "-o", str(tmp_path / "a.wav"), "--srt", str(tmp_path / "no" / "a.srt")),
        ("Hello.", "-o", str(tmp_path / "a.wav"), "--vtt", str(tmp_path)),
        ("--batch", str(lines), "-o", str(tmp_path / "out"), "--srt", str(tmp_path / "a.srt")),
    ):
        refused = say(*arguments)
        assert refused.exit_code in (2, 8)
        assert "captions" in refused.output
    assert not list(tmp_path.glob("a.*"))


def test_a_model_without_known_heads_is_refused_before_it_is_downloaded(tmp_path: Path) -> None:
    out = ["-o", str(tmp_path / "a.wav"), "--srt", str(tmp_path / "a.srt")]
    refused = CliRunner().invoke(app, ["say", "Hello.", "-m", "nano", *out])
    assert refused.exit_code == 2
    assert "the words of 'nano' cannot be timed" in refused.output
    assert "english, multilingual, turbo, wren" in refused.output
