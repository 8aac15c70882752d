"""`nightingale convert`, `detect` and `--watermark`, in-process, with the model "noise" and a marker of our own."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from synthetic_clip import voice_like
from typer.testing import CliRunner

from nightingale import TTS, ConfigError
from nightingale.audio import watermark
from nightingale.audio.read import MAX_SECONDS
from nightingale.cli.commands import app
from nightingale.errors import EngineFault
from nightingale.install import install_command

TONE_HZ = 1000.0


class ToneMarker:
    """Adds a tone, and finds it: a marker as resemble-perth's, which depends on the whole signal's phase."""

    def apply_watermark(self, wav: np.ndarray, sample_rate: int, **_: Any) -> np.ndarray:
        at = np.arange(len(wav)) / sample_rate
        return wav + 0.01 * np.sin(2 * np.pi * TONE_HZ * at).astype(np.float32)

    def get_watermark(self, wav: np.ndarray, sample_rate: int, **_: Any) -> float:
        seconds = [wav[at : at + sample_rate] for at in range(0, len(wav), sample_rate)]
        levels = [np.abs(np.fft.rfft(one, sample_rate))[int(TONE_HZ)] for one in seconds]
        return float(max(levels) > 0.002 * sample_rate)


@pytest.fixture
def perth(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put a marker in the place of the package resemble-perth."""
    monkeypatch.setitem(sys.modules, "perth", SimpleNamespace(PerthImplicitWatermarker=ToneMarker))
    watermark.open_marker.cache_clear()
    yield
    watermark.open_marker.cache_clear()


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "in.wav"
    soundfile.write(path, voice_like(2.0, 24_000), 24_000)
    return path


def run(*arguments: object, **options: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


def test_a_file_is_converted(clip: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.flac"
    result = run("convert", clip, "-m", "noise", "--seed", 1, "-o", out, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["audio_seconds"] == pytest.approx(2.0, abs=0.05)
    assert soundfile.info(out).duration == pytest.approx(2.0, abs=0.05)
    from_stdin = tmp_path / "stdin.flac"
    result = run("convert", "-", "-m", "noise", "--seed", 1, "-o", from_stdin, "-q", input=clip.read_bytes())
    assert result.exit_code == 0, result.output
    assert np.array_equal(soundfile.read(out)[0], soundfile.read(from_stdin)[0])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["convert", "missing.wav", "-o", "out.wav"], 6, "no such recording"),
        (["convert", "{clip}", "-o", "missing/out.wav"], 8, "cannot be written"),
        (["convert", "{clip}", "-v", "no voice", "-o", "out.wav"], 6, "no such voice"),
        (["convert", "{clip}", "-m", "noise", "-O", "t3=v3", "-o", "out.wav"], 2, "has no options"),
        (
            ["convert", "{clip}", "-m", "turbo", "--yes", "--seed", "-1", "-o", "out.wav"],
            2,
            "seed is out of range",
        ),
        (["detect", "missing.wav"], 6, "cannot be opened"),
    ],
)
def test_mistakes_are_reported(
    arguments: list[str], code: int, words: str, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*[one.format(clip=clip) for one in arguments])
    assert (result.exit_code, words in result.output) == (code, True), result.output


def test_a_long_recording_is_read_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightingale.audio.read.MAX_SECONDS", 3)
    assert MAX_SECONDS == 600
    path, out = tmp_path / "long.wav", tmp_path / "out.wav"
    soundfile.write(path, voice_like(4.0, 24_000), 24_000)
    result = run("convert", path, "-m", "noise", "-o", out, "-q")
    assert result.exit_code == 0, result.output
    assert soundfile.info(out).duration == pytest.approx(4.0, abs=0.09)


def test_audio_is_marked_only_if_asked_for(perth: None, clip: Path, tmp_path: Path) -> None:
    for command in (["say", "Hello there, how are you?"], ["convert", clip]):
        for flags, code in ((["--watermark"], 0), ([], 1)):
            out = tmp_path / "out.wav"
            assert run(*command, "-m", "noise", "--seed", 1, "-o", out, "-q", *flags).exit_code == 0
            found = run("detect", out)
            assert found.exit_code == code, (command, found.output)
            assert ("no watermark" in found.output) == (code == 1)
    assert json.loads(run("detect", clip, "--json").stdout) == {
        "file": str(clip), "watermark": False, "confidence": 0.0,
    }  # fmt: skip


def test_marked_chunks_have_their_lengths_and_no_steps_between_them(perth: None) -> None:
    plain, marked = TTS("noise"), TTS("noise", watermark=True)
    words = "Hello there, how are you?"
    for one, other in zip(plain.stream(words, seed=1), marked.stream(words, seed=1), strict=True):
        assert len(one.samples) == len(other.samples)
        change = other.samples - one.samples
        assert 0.005 < np.abs(change).max() < 0.011
        assert abs(change[0]) < 1e-6
        assert abs(change[-1]) < 1e-6
        assert np.abs(np.diff(change)).max() < 0.004


def test_marking_for_one_listener_delays_no_other_and_a_fault_ends_only_its_own(
    perth: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, plain = "Hello there, how are you?", ToneMarker.apply_watermark
    released, reached, faults = threading.Event(), threading.Event(), list[Exception]()

    def slow_then_broken(marker: ToneMarker, wav: np.ndarray, sample_rate: int, **more: Any) -> np.ndarray:
        if not reached.is_set():
            reached.set()
            assert released.wait(30)
        if faults:
            raise faults.pop()
        return plain(marker, wav, sample_rate, **more)

    monkeypatch.setattr(ToneMarker, "apply_watermark", slow_then_broken)
    with TTS("noise", watermark=True) as tts, ThreadPoolExecutor(1) as waiting:
        first = waiting.submit(tts.say, words, seed=1)
        assert reached.wait(30)
        other = tts.say(words, seed=1)
        assert not first.done()
        released.set()
        assert first.result().sha256 == other.sha256
        faults.append(OSError("the marker is broken"))
        with pytest.raises(EngineFault, match="the marker is broken"):
            tts.say(words, seed=1)
        assert tts.say(words, seed=1).sha256 == other.sha256


def test_a_book_is_marked_if_asked_for(perth: None, tmp_path: Path) -> None:
    pytest.importorskip("av")
    story = tmp_path / "story.txt"
    story.write_text("Hello there, how are you? I am well.")
    for flags, code in (([], 1), (["--watermark"], 0), ([], 1)):
        folder = tmp_path / "chapters"
        made = run(
            "book", story, "-o", folder, "--chapters", "flac", "-m", "noise", "-q", "--no-level", *flags
        )
        assert made.exit_code == 0, made.output
        assert run("detect", next(folder.glob("*.flac"))).exit_code == code


def test_watermarks_without_the_package_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    watermark.open_marker.cache_clear()
    monkeypatch.setitem(sys.modules, "perth", None)
    with pytest.raises(ConfigError, match=re.escape(install_command("watermark"))):
        TTS("noise", watermark=True)
    monkeypatch.setitem(sys.modules, "perth", SimpleNamespace(PerthImplicitWatermarker=None))
    with pytest.raises(ConfigError, match="setuptools below 81"):
        TTS("noise", watermark=True)
    with pytest.raises(ConfigError, match="watermark"):
        TTS("noise", watermark="yes")


def test_models_list_the_tags_of_turbo_and_nano() -> None:
    listed = {one["name"]: one["tags"] for one in json.loads(run("models", "list", "--json").stdout)}
    assert "[laugh]" in listed["turbo"]
    assert "[clear throat]" in listed["nano"]
    assert listed["wren"] == listed["english"] == []
    lines = {line.split()[0]: line for line in run("models", "list").stdout.splitlines()}
    assert "tags: [laugh] [chuckle]" in lines["turbo"]
    assert "tags:" not in lines["wren"]
