"""Daily use of `nightingale say`: files, pipes, playing, typed lines, defaults, and checks before loading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from nightingale import TTS
from nightingale.cli import downloads, say_input, say_output
from nightingale.cli.commands import app
from nightingale.cli.console import progress_bar
from nightingale.cli.interactive import PROMPT, speak_lines
from nightingale.engine import load
from nightingale.errors import TextError
from nightingale.hub import hub_cache

NOISE = ("-m", "noise", "--seed", "1")


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brief: TTS) -> Path:
    monkeypatch.setattr(load, "load_noise", lambda: brief._model)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a player into the path; return the file that it writes what it plays to."""
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    folder, file = tmp_path / "bin", tmp_path / "played"
    folder.mkdir()
    program = folder / "paplay"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(file)!r}, 'ab').write(sys.stdin.buffer.read())\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("PULSE_SERVER", "unix:/nowhere")
    return file


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def sha256(*arguments: str, stdin: str | None = None) -> str:
    result = run("say", *arguments, *NOISE, "--json", "-q", stdin=stdin)
    assert result.exit_code == 0, result.output
    return str(json.loads(result.stdout)["sha256"])


def refused(result: Result, exit_code: int, said: str) -> None:
    assert result.exit_code == exit_code, result.output
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert not list(Path().glob("*.wav"))


def test_a_text_comes_from_an_argument_a_file_or_a_pipe() -> None:
    Path("a.txt").write_text("\ufeffHello.")
    expected = sha256("Hello.")
    assert sha256("-f", "a.txt") == expected
    assert sha256(stdin="Hello.") == expected
    assert sha256("-", stdin="Hello.") == expected
    assert sha256("-f", "-", stdin="Hello.") == expected


def test_texts_that_cannot_be_read_are_refused() -> None:
    refused(run("say", "-f", "none.txt"), 2, "cannot be read")
    refused(run("say", "Hello.", "-f", "a.txt"), 2, "two texts")
    refused(run("say", stdin=""), 2, "nothing to say")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_has_a_short_form(option: str) -> None:
    for command in ([], ["say"], ["voices"], ["models", "list"]):
        assert "Usage:" in run(*command, option).stdout


def test_version_has_a_short_form() -> None:
    assert run("-V").stdout == run("--version").stdout
    assert run("-V").stdout.startswith("nightingale ")


@pytest.mark.parametrize("text", ["-5 degrees", "-Hello"])
def test_a_text_with_a_hyphen_is_explained(text: str) -> None:
    result = run("say", text)
    assert result.exit_code == 2
    assert 'nightingale say -- "-5 degrees"' in result.stderr
    assert run("say", *NOISE, "--", text).exit_code == 0


@pytest.mark.thorough
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_models_and_voices(shell: str) -> None:
    def complete(*words: str) -> str:
        told = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        told |= {"_TYPER_COMPLETE_ARGS": " ".join(words), "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        environment = {**os.environ, **told, "_NIGHTINGALE_COMPLETE": f"complete_{shell}"}
        command = [
            sys.executable,
            "-c",
            "from nightingale.cli.commands import app; app(prog_name='nightingale')",
        ]
        return subprocess.run(command, env=environment, capture_output=True, text=True).stdout

    assert "say" in complete("nightingale", "s")
    assert "turbo" in complete("nightingale", "say", "-m", "tur")
    assert "heart+emma" in complete("nightingale", "say", "-v", "heart+em")


def test_audio_is_played_and_also_written(played: Path) -> None:
    assert run("say", "Hello.", "--play", *NOISE).exit_code == 0
    assert not list(Path().iterdir())
    assert run("say", "Hello.", "--play", "-o", "a.pcm", *NOISE).exit_code == 0
    pcm = Path("a.pcm").read_bytes()
    assert played.read_bytes() == pcm + pcm


def test_a_machine_that_cannot_play_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(run("say", "Hello.", "--play", *NOISE), 8, "audio cannot be played here")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_at_a_terminal_audio_is_played_and_lines_are_typed(played: Path, tmp_path: Path) -> None:
    import pty

    def at_a_terminal(*arguments: str, typed: tuple[bytes, ...] = ()) -> str:
        master, terminal = pty.openpty()
        command = [sys.executable, "-m", "nightingale", "say", "-m", "noise", "--seed", "1", *arguments]
        process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path)
        os.close(terminal)
        shown, lines = b"", iter(typed)
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
            if shown.endswith(PROMPT.encode()) and (line := next(lines, None)):
                os.write(master, line)
        os.close(master)
        assert process.wait(60) == 0, shown
        return shown.decode()

    shown = at_a_terminal("Hello.")
    assert "[###" in shown, "no progress bar"
    assert "played: " in shown
    one = played.read_bytes()
    assert one
    assert "Type a line" in at_a_terminal(typed=(b"Hello.\n", b"...\n", b"Hello.\n", b"\x04"))
    assert played.read_bytes() == 3 * one


def test_typed_lines_go_on_after_a_mistake_and_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["One.", "bad", " ", "long", "Two."])
    spoken: list[str] = []

    def read(_: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    def speak(line: str) -> None:
        if line == "bad":
            raise TextError("this cannot be spoken")
        if line == "long":
            raise KeyboardInterrupt
        spoken.append(line)

    monkeypatch.setattr("builtins.input", read)
    speak_lines(speak)
    assert spoken == ["One.", "Two."]
    said = capsys.readouterr().err
    assert "this cannot be spoken" in said
    assert "stopped" in said


def test_every_format_of_a_file_and_of_stdout() -> None:
    for name in ("a.opus", "a.m4a", "a.pcm", "a.raw", "a.mp3"):
        assert run("say", "Hello.", "-o", name, *NOISE).exit_code == 0
    assert run("say", "Hello.", "-o", "b.mp3", "--bitrate", "32k", *NOISE).exit_code == 0
    pcm = run("say", "Hello.", "-o", "-", "--format", "pcm", "-q", *NOISE).stdout_bytes
    assert pcm == Path("a.pcm").read_bytes() == Path("a.raw").read_bytes()
    assert len(np.frombuffer(pcm, "<i2")) == 6 * 960
    assert run("say", "Hello.", "-o", "-", "--format", "mp3", "-q", *NOISE).stdout_bytes[:1] == b"\xff"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "a.mp3", "--bitrate", "fast"], "not a bit rate"),
        (["-o", "a.wav", "--bitrate", "64k"], "no such bit rate"),
        (["-o", "a.mp3", "--format", "mp3"], "--format is for"),
        (["-o", "-", "--format", "xyz"], "no such format"),
        (["-o", "-", "--bitrate", "64k"], "WAV has no bit rate"),
        (["--temperature", "9"], "temperature is out of range"),
        (["--seed", "-1"], "seed is out of range"),
        (["--speed", "0"], "speed is out of range"),
        (["-m", "turbo", "--cfg-weight", "1"], "has no cfg_weight"),
        (["-m", "multilingual", "-l", "xx"], "does not support that language"),
        (["-m", "wren", "-l", "fr"], "does not support that language"),
        (["--profile", "quick"], "unknown profile"),
        (["--stream", "blocks"], "stream"),
        (["-v", "nobody"], "no such voice"),
        (["-v", "no/clip.wav"], "no such voice"),
        (["--device", "cuda:99"], "cuda:99"),
        (["-v", "heart+nobody"], "nobody"),
        (["-v", "heart+(2)"], "heart(2)+emma"),
    ],
)
def test_options_are_checked_before_a_model_is_loaded(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nightingale.engine.tts.load_model", lambda *_, **__: pytest.fail("a model was loaded")
    )
    monkeypatch.setattr(
        downloads, "confirm_download", lambda *_, **__: pytest.fail("a download was asked for")
    )
    result = run("say", "Hello.", *arguments)
    assert result.exit_code in (2, 4, 6), result.output
    assert said in result.stderr
    assert not list(Path().iterdir())


@pytest.mark.parametrize("voice", ["default", "DEFAULT", "nova", "Nova", "noise", "noise+Nova(3)"])
def test_other_names_of_voices_are_accepted(voice: str) -> None:
    assert sha256("Hello.", "-v", voice) == sha256("Hello.")


def test_the_default_voice_is_marked() -> None:
    lines = run("voices", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines if "default" in line] == ["heart"]
    listed = json.loads(run("voices", "list", "--json").stdout)
    assert [voice["name"] for voice in listed if voice["default"]] == ["heart"]


def test_defaults_come_from_a_file(tmp_path: Path) -> None:
    config = tmp_path / "defaults.toml"
    config.write_text('port = 9\n[say]\nvoice = "nova"\nseed = 1\nspeed = 2\nquiet = true\nmodel = "noise"\n')
    config.write_text(f'{config.read_text()}option = []\nformat = "wav"\nout = "-"\n')
    assert run("say", "Hello.", "--config", str(config)).stdout_bytes[:4] == b"RIFF"
    config.write_text(config.read_text().replace('out = "-"\n', "").replace('format = "wav"\n', ""))
    given = ("say", "Hello.", "--json", "--config", str(config))
    result = run(*given)
    assert json.loads(result.stdout)["voice"] == "nova"
    assert json.loads(result.stdout)["sha256"] == sha256("Hello.", "--speed", "2")
    assert json.loads(run(*given, "--speed", "1").stdout)["sha256"] == sha256("Hello.")


def test_the_users_own_file_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "nightingale.toml"
    config.write_text('[say]\nmodel = "noise"\nout = "mine.flac"\n')
    monkeypatch.setattr("nightingale.files.default_config", lambda: config)
    assert run("say", "Hello.").exit_code == 0
    assert Path("mine.flac").is_file()


def test_books_and_conversions_have_defaults_too(tmp_path: Path) -> None:
    config, given = tmp_path / "defaults.toml", ("--config", str(tmp_path / "defaults.toml"))
    (tmp_path / "book.txt").write_text("Chapter 1\n\nHello there.\n")
    (tmp_path / "words.toml").write_text('[words]\nthere = "their"\n')
    lexicon = f'lexicon = "{tmp_path / "words.toml"}"'
    config.write_text(
        f'[book]\nmodel = "noise"\nchapters = "flac"\nsrt = true\n{lexicon}\n[convert]\nmodel = "wren"\nseed = 1\n'
    )
    assert run("book", str(tmp_path / "book.txt"), "-o", str(tmp_path / "out"), *given).exit_code == 0
    assert list((tmp_path / "out").glob("*.flac"))
    assert list((tmp_path / "out").glob("*.srt"))
    refused(run("book", str(tmp_path / "book.txt"), "--chapters", "doc", *given), 2, "no such format")
    refused(run("convert", "none.wav", *given), 6, "no such recording")
    config.write_text("[book]\nlist = true\n[convert]\nout = 1\n")
    refused(run("book", str(tmp_path / "book.txt"), *given), 2, "unknown default")
    refused(run("convert", "none.wav", *given), 2, "wrong type")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("colour = 1", "unknown default"),
        ('text = "Hello."', "unknown default"),
        ('srt = "hello.srt"', "unknown default"),
        ('speed = "fast"', "wrong type"),
        ("voice = 5", "wrong type"),
        ("quiet = 1", "wrong type"),
        ("seed = true", "wrong type"),
        ("speed = ", "not valid TOML"),
    ],
)
def test_mistakes_in_defaults_are_told(table: str, said: str, tmp_path: Path) -> None:
    config = tmp_path / "defaults.toml"
    config.write_text(f"[say]\n{table}\n")
    refused(run("say", "Hello.", "--config", str(config)), 2, said)
    refused(run("say", "Hello.", "--config", "none.toml"), 2, "does not exist")


def test_a_download_is_not_started_without_consent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    fetched: list[str] = []

    def download(card: Any, names: tuple[str, ...], _meter: object = None) -> Path:
        fetched.append(names[0])
        raise TextError("stop here", got="a test")

    monkeypatch.setattr(hub_cache, "download", download)
    result = run("say", "Hello.", "-m", "nano")
    refused(result, 3, "--yes")
    assert "GB to download" in result.stderr
    assert not fetched
    assert "stop here" in run("say", "Hello.", "-m", "nano", "--yes").stderr
    assert fetched
    monkeypatch.setattr(
        sys, "stdin", type("Terminal", (), {"isatty": lambda _: True, "readline": lambda _: "y\n"})()
    )
    monkeypatch.setattr(
        sys,
        "stderr",
        type(
            "Terminal",
            (),
            {"isatty": lambda _: True, "write": lambda _, text: len(text), "flush": lambda _: None},
        )(),
    )
    downloads.confirm_download("nano", {}, offline=False, yes=False)


def test_a_progress_bar_fills() -> None:
    assert progress_bar(0.0) == f"[{'.' * 24}]   0%"
    assert progress_bar(0.5) == f"[{'#' * 12}{'.' * 12}]  50%"
    assert progress_bar(1.0) == f"[{'#' * 24}] 100%"


def test_a_terminal_without_a_player_gets_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = type("Terminal", (), {"isatty": lambda _: True})()
    monkeypatch.setattr(say_output, "sys", type("sys", (), {"stdout": terminal}))
    monkeypatch.setattr("nightingale.audio.playback.can_play", lambda: False)
    assert say_output.choose_output(None, False) == ("nightingale.wav", False)
    monkeypatch.setattr("nightingale.audio.playback.can_play", lambda: True)
    assert say_output.choose_output(None, False) == (None, True)
    assert say_output.choose_output("a.wav", False) == ("a.wav", False)
    assert say_input.PIPE == "-"
