"""The measurement of voice conversion, with a judge that knows the answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from nightingale.errors import ConfigError
from nightingale.types import AudioChunk, Samples
from nightingale_lab.bench import conversion
from nightingale_lab.bench.conversion import (
    CONVERTED_PER_READER,
    KIND,
    Case,
    judge,
    main,
    pairs_of,
    reader_references,
)
from nightingale_lab.bench.store import problems, read_lines

VOICES = [f"v{number}" for number in range(10)]
RATE_HZ = 16_000
SPOKEN = "the birch canoe slid on the smooth planks"


def test_twenty_pairs_use_every_voice_twice_as_source_and_target() -> None:
    pairs = pairs_of(VOICES, 20)
    assert len(set(pairs)) == 20
    assert all(source != target for source, target in pairs)
    for place in (0, 1):
        assert all([pair[place] for pair in pairs].count(voice) == 2 for voice in VOICES)
    assert len(pairs_of(VOICES[:2], 20)) == 2


def test_rates_and_nearer_pairs_are_counted() -> None:
    cases = [
        Case(pair=pair, text="the birch canoe slid", source=Path(f"s{n}.wav"), converted=Path(f"c{n}.wav"))
        for n, pair in enumerate([("a", "b"), ("b", "a")])
    ]

    def ask(jobs: Sequence[Mapping[str, Any]], judges: Sequence[str]) -> Iterable[dict[str, Any]]:
        for job in jobs:
            words = "the birch canoe slid" if job["wav"].startswith("s") else "the birch canoe sank"
            spoken = {name: {"transcript": words} for name in judges}
            near = {"a": 0.9, "b": 0.5}
            yield {
                "wav": job["wav"],
                **(spoken if "speaker" not in judges else {"speaker": {"cosines": near}}),
            }

    result = judge(cases, {"a": ["a.wav"], "b": ["b.wav"]}, ask)
    assert result["wer"]["base"] == {"source": 0.0, "converted": 0.25}
    assert result["words"] == 8
    assert result["worst"][0] == {
        "text": "the birch canoe slid",
        "errors": {"tiny": 1, "base": 1},
        "transcripts": dict.fromkeys(("tiny", "base"), "the birch canoe sank"),
    }
    assert result["nearer_to_target"] == 1
    assert [row["to_target"] for row in result["pairs"]] == [0.5, 0.9]


class ScriptedTTS:
    """An engine whose speech is silence, and which converts by halving the samples."""

    sample_rate_hz = 24_000
    voices = ("aoede", "bella", "emma")

    def __init__(self) -> None:
        self.converter = self
        self.converted: list[tuple[float, str]] = []
        """Seconds of each recording, and its target."""

    def say(self, text: str, *, voice: str, seed: int) -> AudioChunk:
        assert text
        assert voice in self.voices
        return self.audio(np.zeros(2400 + seed, np.float32))

    def convert(self, audio: AudioChunk, *, voice: str, seed: int) -> AudioChunk:
        assert seed == len(self.converted)
        self.converted.append((audio.seconds, voice))
        return self.audio(audio.samples / 2)

    def stream(
        self, parts: Iterable[Samples], rate_hz: int, *, voice: str, seed: int
    ) -> Iterable[AudioChunk]:
        samples = np.concatenate(list(parts))
        yield self.convert(AudioChunk(samples=samples, sample_rate_hz=rate_hz), voice=voice, seed=seed)

    def audio(self, samples: Samples) -> AudioChunk:
        return AudioChunk(samples=samples, sample_rate_hz=self.sample_rate_hz)


class ScriptedJudges:
    """Judges that miss the last word of converted recordings; tiny misses the first word of all recordings too."""

    def __init__(self) -> None:
        self.speakers: list[dict[str, list[str]]] = []

    def __call__(self, jobs: Sequence[Mapping[str, Any]], judges: Sequence[str]) -> Iterable[dict[str, Any]]:
        for job in jobs:
            assert Path(job["wav"]).is_file()
            answer: dict[str, Any] = {"wav": job["wav"]}
            for name in judges:
                if name == "speaker":
                    self.speakers.append(job["speakers"])
                    answer["speaker"] = {
                        "cosines": {who: 0.5 + 0.1 * at for at, who in enumerate(job["speakers"])}
                    }
                else:
                    words = SPOKEN.split() if Path(job["wav"]).name.startswith("s") else SPOKEN.split()[:-1]
                    answer[name] = {"transcript": " ".join(words[1:] if name == "tiny" else words)}
            yield answer


def record_readers(folder: Path, recordings: int) -> Path:
    """Write recordings of 5 s and more of three readers, one of whom has the name of a voice."""
    for name in ("1688", "1998", "emma"):
        (folder / name).mkdir(parents=True)
        for number in range(recordings):
            samples = np.full((5 + 4 * number) * RATE_HZ, 0.1, np.float32)
            soundfile.write(folder / name / f"{number}.flac", samples, RATE_HZ)
    return folder


@pytest.fixture
def tts(monkeypatch: pytest.MonkeyPatch) -> ScriptedTTS:
    made = ScriptedTTS()
    monkeypatch.setattr(conversion, "TTS", lambda _: nullcontext(made))
    return made


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> ScriptedJudges:
    made = ScriptedJudges()
    monkeypatch.setattr(conversion, "judges_python", lambda: Path("python"))
    monkeypatch.setattr(conversion, "ask_with", lambda *_: made)
    return made


def measured(tmp_path: Path, *options: str) -> dict[str, Any]:
    """Run the benchmark and return the line that it stores."""
    main([*options, "--results", str(tmp_path / "results")])
    return read_lines(tmp_path / "results", KIND)[-1]


@pytest.mark.parametrize("live", [False, True])
def test_the_first_seconds_of_two_recordings_of_each_reader_are_converted(
    tmp_path: Path, tts: ScriptedTTS, judges: ScriptedJudges, live: bool
) -> None:
    readers = record_readers(tmp_path / "readers", 4)
    line = measured(tmp_path, "--readers", str(readers), *(["--live"] if live else []))
    assert not problems(line, KIND)
    assert tts.converted == [
        (5.0, "aoede"),
        (8.0, "bella"),
        (5.0, "emma"),
        (8.0, "aoede"),
        (5.0, "bella"),
        (8.0, "emma"),
    ]
    assert (line["readers"], line["clips"], line["live"]) == (3, 6, live)
    assert [row["source"] for row in line["pairs"][::2]] == ["reader 1688", "reader 1998", "reader emma"]
    assert [row["target"] for row in line["pairs"]] == ["aoede", "bella", "emma", "aoede", "bella", "emma"]
    assert judges.speakers[0]["reader 1688"] == [
        str(readers / "1688" / f"{number}.flac") for number in (2, 3)
    ]
    assert judges.speakers[-1].keys() == {"reader emma", "emma"}


def test_the_text_of_a_reader_is_what_base_understands_of_the_recording(
    tmp_path: Path, tts: ScriptedTTS, judges: ScriptedJudges
) -> None:
    line = measured(tmp_path, "--readers", str(record_readers(tmp_path / "readers", 3)))
    assert line["wer"] == {
        "tiny": {"source": 1 / 8, "converted": 2 / 8},
        "base": {"source": 0.0, "converted": 1 / 8},
    }
    assert line["nearer_to_target"] == len(line["pairs"]) == 6
    assert all((row["to_source"], row["to_target"]) == (0.5, 0.6) for row in line["pairs"])


def test_lines_of_pairs_have_no_readers(tmp_path: Path, tts: ScriptedTTS, judges: ScriptedJudges) -> None:
    line = measured(tmp_path, "--pairs", "2", "--sentences", "1")
    assert "readers" not in line
    assert [(row["source"], row["target"]) for row in line["pairs"]] == [
        ("aoede", "bella"),
        ("bella", "emma"),
    ]


def test_a_tiny_run_converts_one_recording_of_two_readers(
    tmp_path: Path, tts: ScriptedTTS, judges: ScriptedJudges, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--readers", str(record_readers(tmp_path / "readers", 3)), "--tiny"])
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (line["readers"], line["clips"], line["tiny"]) == (2, 2, True)


def test_a_reader_without_other_recordings_is_refused() -> None:
    paths = [Path(f"{number}.flac") for number in range(CONVERTED_PER_READER)]
    with pytest.raises(ConfigError, match="too few recordings"):
        reader_references({"1688": paths}, CONVERTED_PER_READER)
