"""The command line, in process, with an engine that hums instead of speaking."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from typer.testing import CliRunner, Result

from nightingale import errors
from nightingale.cli.main import app
from nightingale.types import Audio, AudioChunk, Metrics
from nightingale.voices import library
from nightingale.voices.voice import Voice

RATE = 24_000
HUM = np.linspace(-0.5, 0.5, RATE // 10, dtype=np.float32)


def make_voice() -> Voice:
    return Voice.checked(
        name="clip",
        family="turbo",
        speaker=torch.ones(256),
        prompt_ids=torch.tensor([1, 2]),
        flow_prompt_ids=torch.tensor([3]),
        flow_prompt_mel=torch.zeros(2, 80),
        flow_speaker=torch.ones(192),
        provenance="hummed",
    )


class Hummed:
    """A stream of it."""

    metrics = Metrics(ttfa_ms=12.5, total_ms=50.0, audio_seconds=0.1, tokens=3)

    def __init__(self, chunks: Iterator[AudioChunk], seed: int) -> None:
        self._chunks, self.seed = chunks, seed

    def __iter__(self) -> Iterator[AudioChunk]:
        return self._chunks


class FakeTTS:
    """Remembers how it was made and what it was told to say."""

    made: dict[str, Any]
    said: dict[str, Any]
    failure: BaseException | None = None

    def __init__(self, model: str | None = None, **options: Any) -> None:
        type(self).made = {"model": model, **options}
        self.name = model or "wren"
        self.notice = "this is a hum, not speech" if self.name == "wren" else None

    sample_rate_hz = RATE

    def stream(self, text: str, **controls: Any) -> Hummed:
        type(self).said = {"text": text, **controls}
        if self.failure is not None:
            raise self.failure
        seed = controls["seed"] if controls["seed"] is not None else 99
        return Hummed(self.hum(), seed)

    def say(self, text: str, **controls: Any) -> Audio:
        stream = self.stream(text, **{"seed": None, **controls})
        return Audio(samples=HUM, sample_rate_hz=RATE, seed=stream.seed, metrics=stream.metrics)

    def hum(self) -> Iterator[AudioChunk]:
        for part in (HUM[:700], HUM[700:]):
            yield AudioChunk(samples=part, sample_rate_hz=RATE)

    def voice(self, reference: Path) -> Voice:
        return make_voice()


@pytest.fixture(autouse=True)
def tts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[FakeTTS]:
    fake = type("Fake", (FakeTTS,), {"made": {}, "said": {}})
    engine = ModuleType("nightingale.engine")
    engine.TTS = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nightingale.engine", engine)
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return fake


def run(*arguments: str, stdin: bytes | str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def assert_four_parts(result: Result, exit_code: int) -> None:
    """One message on stderr, its exit code, no traceback, nothing on stdout, no file."""
    assert result.exit_code == exit_code, result.output
    for part in ("error: ", "got: ", "allowed: ", "fix: "):
        assert part in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert not list(Path().iterdir())


def test_say_writes_a_wav_and_tells_the_notice_on_stderr() -> None:
    result = run("say", "Hello.", "-o", "hello.wav")
    assert result.exit_code == 0, result.output
    with wave.open("hello.wav") as file:
        assert (file.getframerate(), file.getnframes()) == (RATE, len(HUM))
    assert "this is a hum, not speech" in result.stderr
    assert "seed 99" in result.stderr
    assert result.stdout == ""


def test_the_last_line_of_stdout_is_the_json_object() -> None:
    result = run("say", "Hello.", "-o", "hello.wav", "--seed", "7", "--json")
    told = json.loads(result.stdout.splitlines()[-1])
    assert told["sha256"] == hashlib.sha256(HUM.astype("<f4").tobytes()).hexdigest()
    assert told == {
        "model": "wren",
        "voice": "default",
        "seed": 7,
        "tokens": 3,
        "audio_seconds": 0.1,
        "ttfa_ms": 12.5,
        "rtf": 0.5,
        "sha256": told["sha256"],
    }


def test_quiet_leaves_only_the_notice() -> None:
    assert run("say", "Hello.", "-q").stderr == "note: this is a hum, not speech\n"
    assert run("say", "Hello.", "-q", "-m", "turbo").output == ""


def test_every_control_reaches_the_engine(tts: type[FakeTTS]) -> None:
    numbers = {
        "temperature": 0.1,
        "top_p": 0.2,
        "min_p": 0.3,
        "repetition_penalty": 1.4,
        "cfg_weight": 0.0,
        "exaggeration": 0.6,
        "speed": 1.5,
    }
    flags = [word for name, value in numbers.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    named = ["-m", "multilingual", "-v", "anna", "-l", "fr", "--device", "cpu", "--offline", "-O", "t3=v3"]
    named += ["--profile", "exact"]
    assert run("say", "Bonjour.", *flags, *named, "--seed", "5").exit_code == 0
    assert tts.made == {
        "model": "multilingual",
        "device": "cpu",
        "profile": "exact",
        "offline": True,
        "t3": "v3",
    }
    assert tts.said == {"text": "Bonjour.", "voice": "anna", "language": "fr", "seed": 5, **numbers}


def test_what_is_not_given_is_left_to_the_model(tts: type[FakeTTS]) -> None:
    run("say", "Hello.")
    assert {v for k, v in tts.said.items() if k != "text"} == {None}


def test_text_comes_from_stdin_and_sound_goes_to_stdout(tts: type[FakeTTS]) -> None:
    result = run("say", "-", "-o", "-", stdin="Grüße.\n")
    assert result.exit_code == 0
    assert tts.said["text"] == "Grüße.\n"
    with wave.open(io.BytesIO(result.stdout_bytes)) as file:
        assert file.getnframes() == len(HUM)


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_a_book_is_written_while_it_is_spoken(suffix: str, tts: type[FakeTTS]) -> None:
    written: list[int] = []

    def hum(_: FakeTTS) -> Iterator[AudioChunk]:
        for _ in range(200):
            yield AudioChunk(samples=HUM, sample_rate_hz=RATE)
            written.extend(path.stat().st_size for path in Path().glob(".*.part"))

    tts.hum = hum  # type: ignore[method-assign]
    assert run("say", "Once upon a time.", "-o", f"book.{suffix}").exit_code == 0
    whole = Path(f"book.{suffix}").stat().st_size
    assert len(written) == 200
    assert written[100] > 0.4 * whole, "the sound was collected first"
    assert soundfile.info(f"book.{suffix}").frames == pytest.approx(200 * len(HUM), abs=2400)
    assert len(list(Path().iterdir())) == 1


def test_what_fails_in_mid_sentence_leaves_what_was_there(tts: type[FakeTTS]) -> None:
    def hum(_: FakeTTS) -> Iterator[AudioChunk]:
        yield AudioChunk(samples=HUM, sample_rate_hz=RATE)
        raise errors.EngineFault("it broke", got="a fault", allowed="none", fix="Try again.")

    tts.hum = hum  # type: ignore[method-assign]
    Path("old.wav").write_bytes(b"precious")
    assert run("say", "Hello.", "-o", "old.wav").exit_code == errors.EngineFault.exit_code
    assert [path.name for path in Path().iterdir()] == ["old.wav"]
    assert Path("old.wav").read_bytes() == b"precious"


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_blank_text_is_refused_before_a_model_is_loaded(text: str, tts: type[FakeTTS]) -> None:
    assert_four_parts(run("say", text), errors.EmptyText.exit_code)
    assert_four_parts(run("say", "-", stdin=text), errors.EmptyText.exit_code)
    assert tts.made == {}


def test_text_that_is_not_utf8_is_refused() -> None:
    assert_four_parts(run("say", "-", stdin=b"caf\xe9"), errors.TextError.exit_code)
    assert_four_parts(run("say", "caf\udce9"), errors.TextError.exit_code)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["-o", "hello.xyz"], errors.ConfigError),
        (["-o", "no/such/folder/hello.wav"], errors.OutputError),
        (["-o", "-", "--json"], errors.ConfigError),
        (["-O", "nonsense"], errors.ConfigError),
        (["-O", "a b=c"], errors.ConfigError),
    ],
)
def test_what_cannot_work_is_refused_before_a_model_is_loaded(
    arguments: list[str], kind: type[errors.NightingaleError], tts: type[FakeTTS]
) -> None:
    assert_four_parts(run("say", "Hello.", *arguments), kind.exit_code)
    assert tts.made == {}


@pytest.mark.parametrize(
    "kind",
    [errors.TextTooLong, errors.CheckpointError, errors.DeviceError, errors.MemoryFull, errors.ModelMissing],
)
def test_an_error_of_the_engine_is_a_message_and_its_exit_code(
    kind: type[errors.NightingaleError], tts: type[FakeTTS]
) -> None:
    tts.failure = kind("it broke", got="this", allowed="that", fix="Do so.")
    assert_four_parts(run("say", "Hello.", "-q", "-m", "turbo"), kind.exit_code)


def test_an_interrupt_ends_with_130_and_no_file(tts: type[FakeTTS]) -> None:
    tts.failure = KeyboardInterrupt()
    result = run("say", "Hello.")
    assert result.exit_code == 130
    assert not list(Path().iterdir())


def test_wrong_usage_exits_with_2() -> None:
    for arguments in (
        ["say"],
        ["sing", "Hello."],
        ["say", "Hello.", "--seed", "many"],
        ["say", "Hello.", "--no-such"],
    ):
        assert run(*arguments).exit_code == 2


def test_a_clip_becomes_a_named_voice_that_can_be_exported_and_removed() -> None:
    Path("anna.wav").write_bytes(b"RIFF")
    added = run("voices", "add", "anna", "anna.wav", "-m", "turbo")
    assert added.exit_code == 0, added.output
    (entry,) = [e for e in json.loads(run("voices", "list", "--json").stdout) if not e["builtin"]]
    assert (entry["name"], entry["family"]) == ("anna", "turbo")
    assert "anna" in run("voices", "list").stdout
    assert run("voices", "export", "anna", "out.safetensors").exit_code == 0
    assert Voice.load("out.safetensors") == make_voice()
    assert run("voices", "add", "anna", "anna.wav").exit_code == errors.VoiceError.exit_code
    assert run("voices", "add", "anna", "anna.wav", "--replace").exit_code == 0
    assert run("voices", "remove", "anna").exit_code == 0
    assert run("voices", "remove", "anna").exit_code == errors.VoiceNotFound.exit_code


def test_a_built_in_voice_keeps_its_name_unless_told(tts: type[FakeTTS]) -> None:
    assert library.locate("heart") is not None, "the test is about nothing"
    Path("clip.wav").write_bytes(b"RIFF")
    refused = run("voices", "add", "heart", "clip.wav")
    assert refused.exit_code == errors.VoiceExists.exit_code
    assert "built in" in refused.stderr
    assert "--replace" in refused.stderr
    assert tts.made == {}, "a model was loaded for nothing"
    assert library.locate("heart") == library.builtin_folder() / "heart.safetensors"
    assert run("voices", "add", "heart", "clip.wav", "--replace").exit_code == 0
    assert library.load("heart") == make_voice()


def test_a_voice_file_is_added_without_loading_a_model(tts: type[FakeTTS]) -> None:
    make_voice().save("berta.safetensors")
    assert run("voices", "add", "berta", "berta.safetensors").exit_code == 0
    assert library.load("berta") == make_voice()
    assert tts.made == {}


@pytest.mark.parametrize("out", ["x.txt", "x", "x.pt", "x.safetensors.bak", "-"])
def test_a_voice_is_exported_only_to_what_can_be_read_again(out: str) -> None:
    library.add("anna", make_voice())
    result = run("voices", "export", "anna", out)
    assert_four_parts(result, errors.ConfigError.exit_code)
    assert ".safetensors" in result.stderr


def test_a_voice_needs_a_name_and_a_file() -> None:
    assert_four_parts(run("voices", "add", "../anna", "anna.wav"), errors.VoiceNotFound.exit_code)
    assert_four_parts(run("voices", "add", "anna", "none.wav", "-q"), errors.VoiceNotFound.exit_code)


def test_models_list_shows_every_card_and_what_is_missing() -> None:
    told = {one["name"]: one for one in json.loads(run("models", "list", "--json").stdout)}
    assert list(told) == ["wren", "english", "multilingual", "turbo", "nano"]
    assert "turbo" in run("models", "list").stdout


def test_the_model_in_the_box_is_a_model_like_others() -> None:
    first = run("models", "list").stdout.splitlines()[0]
    assert first.startswith("wren")
    assert "in the package, 4" in first  # 40 MB and some
    for line in run("models", "path", "wren").stdout.splitlines():
        assert Path(line.split("\t")[1]).is_file()
    assert Path(run("models", "pull", "wren").stdout.strip()).is_dir()


def test_models_path_prints_the_files_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    for name in ("t3_cfg.safetensors", "s3gen.safetensors", "ve.safetensors", "tokenizer.json"):
        (folder / name).touch()
    assert f"t3\t{folder / 't3_cfg.safetensors'}" in run("models", "path", str(folder)).stdout


def test_an_unknown_model_is_not_pulled() -> None:
    assert_four_parts(run("models", "pull", "trubo"), errors.UnknownModel.exit_code)


def test_doctor_reports_and_speaks() -> None:
    told = json.loads(run("doctor", "--json").stdout)
    names = {finding["name"] for finding in told["findings"]}
    assert {
        "python",
        "torch",
        "instruction set",
        "model cache",
        "free disk",
        "models here",
        "self test",
    } <= names
    assert told["healthy"] is True
    assert "self test" not in run("doctor", "--quick").stdout


def test_doctor_says_when_the_machine_does_not_speak(tts: type[FakeTTS]) -> None:
    tts.failure = errors.CheckpointError("weights are broken", got="NaN", allowed="numbers", fix="Reinstall.")
    result = run("doctor")
    assert result.exit_code == 1
    assert "BROKEN" in result.stdout
    assert "weights are broken" in result.stdout
