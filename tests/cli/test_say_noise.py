"""`nightingale say` from the command to the file, with the real engine and the noise model."""

from __future__ import annotations

import hashlib
import io
import json
import wave
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from nightingale import TTS
from nightingale.backends.noise.renderer import NoiseStream
from nightingale.cli.commands import app
from nightingale.engine import load
from nightingale.engine.noise_model import NOTICE
from nightingale.engine.requests.segments import MAX_CHARS
from nightingale.types import AudioChunk, Samples


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brief: TTS) -> Path:
    monkeypatch.setattr(load, "load_noise", lambda: brief._model)  # loaded once, and with short outputs
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def say(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["say", *arguments], input=stdin)


def refused(result: Result, exit_code: int, said: str) -> None:
    """Check the message, the exit code, and that no file was written."""
    assert result.exit_code == exit_code, result.output
    assert "error: " in result.stderr
    assert ": None" not in result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert not list(Path().rglob("*"))


def test_say_writes_a_wav_and_one_line_of_json() -> None:
    result = say("Hello", "-m", "noise", "-o", "out.wav", "--json", "--seed", "7")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout.splitlines()[-1])
    assert list(facts) == [
        "model",
        "voice",
        "seed",
        "tokens",
        "audio_seconds",
        "ttfa_ms",
        "rtf",
        "sha256",
        "warnings",
    ]
    assert (facts["model"], facts["voice"], facts["seed"], facts["tokens"]) == ("noise", "default", 7, 6)
    assert facts["audio_seconds"] == 6 * 960 / 24_000
    assert facts["ttfa_ms"] > 0
    assert facts["rtf"] > 0
    with wave.open("out.wav") as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (24_000, 1, 6 * 960)
    assert f"note: {NOTICE}" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["out.wav"]


def test_digest_is_that_of_the_engine_s_samples() -> None:
    result = say("Hello", "-m", "noise", "-o", "out.wav", "--json", "--seed", "7")
    audio = TTS("noise").say("Hello", seed=7)
    assert json.loads(result.stdout)["sha256"] == audio.sha256
    assert audio.sha256 == hashlib.sha256(audio.samples.astype("<f4").tobytes()).hexdigest()
    with wave.open("out.wav") as file:
        assert file.readframes(10**6) == audio.pcm16


def test_same_seed_writes_the_same_file() -> None:
    for name, seed in (("a.wav", "7"), ("b.wav", "7"), ("c.wav", "8")):
        assert say("Hello", "-m", "noise", "-o", name, "--seed", seed).exit_code == 0
    a, b, c = (Path(name).read_bytes() for name in ("a.wav", "b.wav", "c.wav"))
    assert a == b
    assert a != c


def test_audio_goes_to_stdout_and_messages_to_stderr() -> None:
    result = say("-", "-m", "noise", "-o", "-", "--seed", "7", stdin="Hello")
    assert result.exit_code == 0, result.stderr
    with wave.open(io.BytesIO(result.stdout_bytes)) as file:
        assert file.getnframes() == 6 * 960
    assert NOTICE in result.stderr
    assert not list(Path().iterdir())


def test_notice_is_printed_even_if_quiet() -> None:
    result = say("Hello", "-m", "noise", "-o", "out.wav", "-q")
    assert result.stderr == f"note: {NOTICE}\n"
    assert result.stdout == ""


@pytest.mark.parametrize("suffix", ["flac", "ogg", "mp3"])
def test_say_writes_the_other_formats(suffix: str) -> None:
    import soundfile

    assert say("Hello", "-m", "noise", "-o", f"out.{suffix}", "--seed", "7").exit_code == 0
    assert soundfile.info(f"out.{suffix}").samplerate == 24_000


def test_controls_change_the_audio() -> None:
    digests = set()
    for extra in ([], ["--temperature", "2"], ["--cfg-weight", "3"], ["--top-p", "0.1"]):
        result = say("Hello", "-m", "noise", "-o", "out.wav", "--json", "--seed", "7", *extra)
        digests.add(json.loads(result.stdout)["sha256"])
    assert len(digests) == 4


def test_clip_given_as_voice_is_used(work: Path) -> None:
    from nightingale import save

    t = np.arange(48_000) / 24_000
    clip = (0.3 * np.sin(2 * np.pi * 200 * t * (1 + t))).astype(np.float32)
    save("clip.wav", AudioChunk(samples=clip, sample_rate_hz=24_000))
    result = say("Hello", "-m", "noise", "-o", "out.wav", "-v", "clip.wav", "--json", "--seed", "7")
    plain = say("Hello", "-m", "noise", "-o", "plain.wav", "--json", "--seed", "7")
    assert json.loads(result.stdout)["voice"] == "clip.wav"
    assert json.loads(result.stdout)["sha256"] != json.loads(plain.stdout)["sha256"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["Hello", "-m", "noise", "-o", "no/such/out.wav"], 8, "no such folder"),
        (["Hello", "-m", "noise", "-o", "."], 2, "no encoder"),
        (["Hello", "-m", "noise", "-o", "out.aac"], 2, "no encoder"),
        (["Hello", "-m", "nois", "-o", "out.wav"], 2, "no such model"),
        (["Hello", "-m", "turbo", "-o", "out.wav", "--offline"], 3, "nightingale models pull turbo"),
        (["Hello", "-m", "noise", "-o", "out.wav", "-v", "missing"], 6, "no such voice"),
        (["Hello", "-m", "noise", "-o", "out.wav", "-v", "no/clip.wav"], 6, "no such voice"),
        (["Hello", "-m", "noise", "-o", "out.wav", "--temperature", "-1"], 2, "temperature"),
        (["Hello", "-m", "noise", "-o", "out.wav", "--top-p", "nan"], 2, "top_p"),
        (["Hello", "-m", "noise", "-o", "out.wav", "--seed", "-1"], 2, "seed"),
        (["Hello", "-m", "noise", "-o", "out.wav", "--device", "cuda:99"], 4, "cuda:99"),
        (["Hello", "-m", "noise", "-o", "out.wav", "-O", "t3=v3"], 2, "'t3'"),
        (["Hello", "-m", "noise", "-o", "out.wav", "-O", "colour=blue"], 2, "'colour'"),
        (["Hello", "-m", "noise", "-o", "out.wav", "--stream", "blocks"], 2, "segment, block"),
        (["Hello", "-m", "noise", "-o", "out.wav", "--profile", "exact", "--stream", "block"], 2, "whole"),
        (["Hello", "-m", "noise", "-o", "out.wav", "--profile", "balanced+flow_steps=99"], 2, "1 to 50"),
        (["...", "-m", "noise", "-o", "out.wav"], 2, "nothing to say"),
        ([" ", "-m", "noise", "-o", "out.wav"], 2, "nothing to say"),
        (["a" * (MAX_CHARS + 1), "-m", "noise", "-o", "out.wav"], 2, "5000001 characters"),
    ],
)
def test_invalid_request_is_refused_and_leaves_no_file(
    arguments: list[str], exit_code: int, said: str
) -> None:
    refused(say(*arguments), exit_code, said)


@pytest.mark.parametrize("stream", ["segment", "block"])
def test_the_stream_mode_is_an_option(stream: str) -> None:
    result = say("Hello", "-m", "noise", "-o", "out.wav", "--profile", "balanced", "--stream", stream)
    assert result.exit_code == 0, result.output
    assert say("Hello", "-m", "noise", "-o", "out.wav", "--profile", "default").exit_code == 0


def test_full_disk_leaves_no_partial_file(monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import os

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = say("Hello", "-m", "noise", "-o", "out.wav", "-q")
    assert result.exit_code == 8
    assert "No space left on device" in result.stderr
    assert not list(Path().iterdir())


def test_failed_request_keeps_the_existing_file() -> None:
    Path("out.wav").write_bytes(b"precious")
    assert say("Hello", "-m", "noise", "-o", "out.wav", "--temperature", "9").exit_code == 2
    assert Path("out.wav").read_bytes() == b"precious"


def test_nan_samples_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    push = NoiseStream.push

    def broken(stream: NoiseStream, tokens: list[int], *, final: bool) -> Samples:
        return np.full_like(push(stream, tokens, final=final), np.nan)

    monkeypatch.setattr(NoiseStream, "push", broken)
    refused(say("Hello", "-m", "noise", "-o", "out.wav", "-q"), 9, "NaN")
