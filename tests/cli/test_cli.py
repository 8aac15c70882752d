"""The command line, in process, with a fake engine."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import wave
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner, Result

import nightingale.engine
from nightingale import errors
from nightingale.cli.commands import MEANT, app
from nightingale.types import Audio, AudioChunk, Metrics
from nightingale.voices import library
from nightingale.voices.voice import Voice

RATE = 24_000
SAMPLES = np.linspace(-0.5, 0.5, RATE // 10, dtype=np.float32)


def make_voice() -> Voice:
    return Voice.checked(
        name="clip",
        family="turbo",
        speaker=np.ones(256),
        prompt_ids=[1, 2],
        flow_prompt_ids=[3],
        flow_prompt_mel=np.zeros((2, 80)),
        flow_speaker=np.ones(192),
        provenance="made up",
    )


class FakeStream:
    """A stream of the fake engine."""

    metrics = Metrics(ttfa_ms=12.5, total_ms=50.0, audio_seconds=0.1, tokens=3)
    warnings = ()

    def __init__(self, chunks: Iterator[AudioChunk], seed: int) -> None:
        self._chunks, self.seed = chunks, seed

    def __iter__(self) -> Iterator[AudioChunk]:
        return self._chunks


class FakeTTS:
    """Records how it was created and what it was asked to say."""

    created: dict[str, Any]
    said: dict[str, Any]
    failure: BaseException | None = None

    def __init__(self, model: str | None = None, **options: Any) -> None:
        type(self).created = {"model": model, **options}
        self.name = model or "wren"
        self.notice = "this is a fake, not speech" if self.name == "wren" else None

    sample_rate_hz = RATE

    def stream(self, text: str, **controls: Any) -> FakeStream:
        type(self).said = {"text": text, **controls}
        if self.failure is not None:
            raise self.failure
        seed = controls.get("seed", 99)
        return FakeStream(self.chunks(), seed)

    def say(self, text: str, **controls: Any) -> Audio:
        stream = self.stream(text, **{"seed": None, **controls})
        return Audio(samples=SAMPLES, sample_rate_hz=RATE, seed=stream.seed, metrics=stream.metrics)

    def chunks(self) -> Iterator[AudioChunk]:
        for part in (SAMPLES[:700], SAMPLES[700:]):
            yield AudioChunk(samples=part, sample_rate_hz=RATE)

    def voice(self, reference: Path) -> Voice:
        return make_voice()


@pytest.fixture(autouse=True)
def tts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[FakeTTS]:
    fake = type("Fake", (FakeTTS,), {"created": {}, "said": {}})
    engine = ModuleType("nightingale.engine")
    engine.__path__ = list(nightingale.engine.__path__)  # its submodules stay real
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


def assert_error(result: Result, exit_code: int) -> None:
    """Check that there is one message on stderr, no traceback, nothing on stdout, and no file."""
    assert result.exit_code == exit_code, result.output
    error = result.stderr[result.stderr.index("error: ") :].splitlines()
    assert len(error) > 1, "the message has no details"
    assert all(re.match(r"  (got|allowed|fix): +(?!None$)\S", line) for line in error[1:]), error
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert not list(Path().iterdir())


def test_say_writes_a_wav_and_prints_the_notice_on_stderr() -> None:
    result = run("say", "Hello.", "-o", "hello.wav")
    assert result.exit_code == 0, result.output
    with wave.open("hello.wav") as file:
        assert (file.getframerate(), file.getnframes()) == (RATE, len(SAMPLES))
    assert "this is a fake, not speech" in result.stderr
    assert "seed 99" in result.stderr
    assert result.stdout == ""


def test_last_line_of_stdout_is_the_json_object() -> None:
    result = run("say", "Hello.", "-o", "hello.wav", "--seed", "7", "--json")
    printed = json.loads(result.stdout.splitlines()[-1])
    assert printed["sha256"] == hashlib.sha256(SAMPLES.astype("<f4").tobytes()).hexdigest()
    assert printed == {
        "model": "wren",
        "voice": "default",
        "seed": 7,
        "tokens": 3,
        "audio_seconds": 0.1,
        "ttfa_ms": 12.5,
        "rtf": 0.5,
        "sha256": printed["sha256"],
        "warnings": [],
    }


def test_quiet_prints_only_the_notice() -> None:
    assert run("say", "Hello.", "-q").stderr == "note: this is a fake, not speech\n"
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
    named = ["-m", "multilingual", "-v", "anna", "-l", "fr", "--device", "cpu", "--offline", "--strict"]
    named += ["-O", "t3=v3", "--profile", "exact", "--read-code"]
    library.add("anna", make_voice())
    assert run("say", "Bonjour.", *flags, *named, "--seed", "5").exit_code == 0
    opened: dict[str, Any] = {"model": "multilingual", "device": "cpu", "profile": "exact", "offline": True}
    opened |= {"t3": "v3", "watermark": False}
    assert tts.created == opened
    switches = {"strict": True, "read_code": True, "lexicon": None, "timestamps": False}
    assert tts.said == {
        "text": "Bonjour.",
        "voice": "anna",
        "language": "fr",
        "seed": 5,
        **switches,
        **numbers,
    }


def test_missing_controls_are_left_to_the_model(tts: type[FakeTTS]) -> None:
    run("say", "Hello.")
    given = {name: value for name, value in tts.said.items() if value is not None}
    assert given == {"text": "Hello.", "timestamps": False}


def test_text_is_read_from_stdin_and_audio_written_to_stdout(tts: type[FakeTTS]) -> None:
    result = run("say", "-", "-o", "-", stdin="Grüße.\n")
    assert result.exit_code == 0
    assert tts.said["text"] == "Grüße.\n"
    with wave.open(io.BytesIO(result.stdout_bytes)) as file:
        assert file.getnframes() == len(SAMPLES)


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_long_text_is_written_while_it_is_rendered(suffix: str, tts: type[FakeTTS]) -> None:
    written: list[int] = []

    def chunks(_: FakeTTS) -> Iterator[AudioChunk]:
        for _ in range(200):
            yield AudioChunk(samples=SAMPLES, sample_rate_hz=RATE)
            written.extend(path.stat().st_size for path in Path().glob(".*.part"))

    tts.chunks = chunks  # type: ignore[method-assign]
    assert run("say", "Once upon a time.", "-o", f"book.{suffix}").exit_code == 0
    whole = Path(f"book.{suffix}").stat().st_size
    assert len(written) == 200
    assert written[100] > 0.4 * whole, "the audio was collected first"
    assert soundfile.info(f"book.{suffix}").frames == pytest.approx(200 * len(SAMPLES), abs=2400)
    assert len(list(Path().iterdir())) == 1


def test_failure_keeps_the_existing_file(tts: type[FakeTTS]) -> None:
    def chunks(_: FakeTTS) -> Iterator[AudioChunk]:
        yield AudioChunk(samples=SAMPLES, sample_rate_hz=RATE)
        raise errors.EngineFault("it broke", fix="Try again.")

    tts.chunks = chunks  # type: ignore[method-assign]
    Path("old.wav").write_bytes(b"precious")
    assert run("say", "Hello.", "-o", "old.wav").exit_code == errors.EngineFault.exit_code
    assert [path.name for path in Path().iterdir()] == ["old.wav"]
    assert Path("old.wav").read_bytes() == b"precious"


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_blank_text_is_refused_before_loading_a_model(text: str, tts: type[FakeTTS]) -> None:
    assert_error(run("say", text), errors.EmptyText.exit_code)
    assert_error(run("say", "-", stdin=text), errors.EmptyText.exit_code)
    assert tts.created == {}


def test_text_that_is_not_utf8_is_refused() -> None:
    assert_error(run("say", "-", stdin=b"caf\xe9"), errors.TextError.exit_code)
    assert_error(run("say", "caf\udce9"), errors.TextError.exit_code)


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
def test_invalid_arguments_are_refused_before_loading_a_model(
    arguments: list[str], kind: type[errors.NightingaleError], tts: type[FakeTTS]
) -> None:
    assert_error(run("say", "Hello.", *arguments), kind.exit_code)
    assert tts.created == {}


@pytest.mark.parametrize(
    "kind",
    [errors.TextTooLong, errors.CheckpointError, errors.DeviceError, errors.MemoryFull, errors.ModelMissing],
)
def test_error_of_the_engine_is_printed_with_its_exit_code(
    kind: type[errors.NightingaleError], tts: type[FakeTTS]
) -> None:
    tts.failure = kind("it broke", got="this", allowed="that", fix="Do so.")
    assert_error(run("say", "Hello.", "-q", "-m", "turbo"), kind.exit_code)


def test_interrupt_exits_with_130_and_no_file(tts: type[FakeTTS]) -> None:
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


def test_voice_is_added_exported_and_removed() -> None:
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


def test_name_of_a_builtin_voice_is_taken_unless_replaced(tts: type[FakeTTS]) -> None:
    assert library.locate("heart") is not None, "the test needs a built-in voice"
    Path("clip.wav").write_bytes(b"RIFF")
    refused = run("voices", "add", "heart", "clip.wav")
    assert refused.exit_code == errors.VoiceExists.exit_code
    assert "built in" in refused.stderr
    assert "--replace" in refused.stderr
    assert tts.created == {}, "a model was loaded"
    assert library.locate("heart") == library.builtin_folder() / "heart.safetensors"
    assert run("voices", "add", "heart", "clip.wav", "--replace").exit_code == 0
    assert library.load("heart") == make_voice()


def test_voice_file_is_added_without_loading_a_model(tts: type[FakeTTS]) -> None:
    make_voice().save("berta.safetensors")
    assert run("voices", "add", "berta", "berta.safetensors").exit_code == 0
    assert library.load("berta") == make_voice()
    assert tts.created == {}


@pytest.mark.parametrize("out", ["x.txt", "x", "x.pt", "x.safetensors.bak", "-"])
def test_voice_is_exported_to_safetensors_only(out: str) -> None:
    library.add("anna", make_voice())
    result = run("voices", "export", "anna", out)
    assert_error(result, errors.ConfigError.exit_code)
    assert ".safetensors" in result.stderr


def test_voice_needs_a_valid_name_and_a_file() -> None:
    assert_error(run("voices", "add", "../anna", "anna.wav"), errors.VoiceNotFound.exit_code)
    assert_error(run("voices", "add", "anna", "none.wav", "-q"), errors.VoiceNotFound.exit_code)


def test_models_list_shows_all_models_and_missing_files() -> None:
    models = {one["name"]: one for one in json.loads(run("models", "list", "--json").stdout)}
    assert list(models) == ["wren", "english", "multilingual", "turbo", "nano"]
    assert models["wren"]["complete"]
    lines = run("models", "list").stdout.splitlines()
    assert len(lines) == len(models)
    for line in lines:
        model = models[line.split()[0]]
        assert model["complete"] == (not model["missing"])
        assert model["complete"] != ("missing, about" in line)


def test_builtin_model_is_listed_and_located() -> None:
    first = run("models", "list").stdout.splitlines()[0]
    assert first.startswith("wren")
    assert "in the package, 4" in first  # 40 MB and some
    paths = dict(line.split("\t") for line in run("models", "path", "wren").stdout.splitlines())
    assert {"t3", "s3gen", "voice_encoder", "tokenizer"} <= set(paths)
    assert all(Path(path).is_file() for path in paths.values())
    assert Path(run("models", "pull", "wren").stdout.strip()).is_dir()


def test_models_path_prints_the_files_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    for name in ("t3_cfg.safetensors", "s3gen.safetensors", "ve.safetensors", "tokenizer.json"):
        (folder / name).touch()
    assert f"t3\t{folder / 't3_cfg.safetensors'}" in run("models", "path", str(folder)).stdout


def test_an_unknown_model_is_not_pulled() -> None:
    assert_error(run("models", "pull", "trubo"), errors.UnknownModel.exit_code)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("say", "Hello.", "--output", "a.wav"), "No such option: --output. It is: --out"),
        (("book", "--output", "a", "b.epub"), "No such option: --output. It is: --out"),
        (("say", "Hello.", "--rate", "1.2"), "No such option: --rate. It is: --speed"),
        (("speak", "Hello."), "No such command 'speak'. It is: nightingale say"),
        (("pull", "wren"), "No such command 'pull'. It is: nightingale models pull"),
        (("version",), "No such command 'version'. It is: nightingale --version"),
        (("say", "Hello", "there"), 'Quote the text: nightingale say "Hello there"'),
        (("Hello there",), 'A text comes after say: nightingale say "Hello there"'),
    ],
)
def test_a_natural_mistake_names_the_right_word(arguments: tuple[str, ...], hint: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith(hint)
    assert result.stdout == ""


def test_the_words_that_mistakes_name_exist() -> None:
    flags = run("say", "--help").stdout + run("--help").stdout
    for given, meant in MEANT.items():
        if meant.startswith("--"):
            assert re.search(rf"{meant}\b", flags), meant
        else:
            assert run(*meant.split(), "--help").exit_code == 0, meant
        assert run(given).exit_code == 2, f"{given} means something by now"


@pytest.mark.parametrize("option", ["-o", "--out"])
def test_a_missing_argument_is_no_mistaken_word(option: str) -> None:
    result = run("say", "Hello.", option)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith("requires an argument.")


def test_an_option_that_a_command_lacks_gets_no_word_of_another_command() -> None:
    assert "It is:" not in run("doctor", "--rate", "1").stderr


def test_doctor_reports_and_runs_the_self_test() -> None:
    printed = json.loads(run("doctor", "--json").stdout)
    names = {finding["name"] for finding in printed["findings"]}
    assert {
        "python",
        "torch",
        "instruction set",
        "model cache",
        "free disk",
        "models here",
        "self test",
    } <= names
    assert printed["healthy"] is True
    assert "self test" not in run("doctor", "--quick").stdout


def test_doctor_reports_a_failed_self_test(tts: type[FakeTTS]) -> None:
    tts.failure = errors.CheckpointError("weights are broken", got="NaN", allowed="numbers", fix="Reinstall.")
    result = run("doctor")
    assert result.exit_code == 1
    assert "BROKEN" in result.stdout
    assert "weights are broken" in result.stdout


def test_doctor_needs_no_import_of_torch_by_the_command_line() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import nightingale.cli.doctor as d; print(*d._software())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"name='torch', detail='{version('torch')}'" in done.stdout
