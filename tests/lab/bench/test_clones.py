"""Clones of people, and the voice encoder, with a judge that knows the answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightingale.audio.samples import wav_bytes
from nightingale.errors import ConfigError
from nightingale_lab.bench.clones import (
    compare_clones,
    compare_encoder,
    equal_error_rate,
    readers_in,
    reference_of,
)

SPEAKERS = {
    "anna": np.array([1.0, 0.0, 0.0]),
    "bert": np.array([0.6, 0.8, 0.0]),
    "cleo": np.array([0.0, 0, 1]),
}


PITCH_HZ = {"anna": 200.0, "bert": 100.0, "cleo": 160.0}


def record(path: Path, speaker: str, seconds: float) -> Path:
    """Write a harmonic tone with the pitch of a speaker."""
    t = np.arange(int(seconds * 16_000)) / 16_000
    tone = sum(np.sin(2 * np.pi * PITCH_HZ[speaker] * k * t) / k for k in range(1, 6)) * 0.1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(wav_bytes(np.asarray(tone, np.float32), 16_000))
    return path


def recordings(folder: Path) -> Path:
    for name in SPEAKERS:
        for number, seconds in enumerate((3.0, 12.0, 6.0)):
            record(folder / name / f"{number}.wav", name, seconds)
    return folder


def judge(jobs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterable[dict[str, Any]]:
    """Answer with the vector of the speaker in whose folder a clip is."""
    assert list(names) == ["speaker"]
    for job in jobs:
        vector = SPEAKERS[Path(job["wav"]).parent.name]
        near = {name: float(vector @ SPEAKERS[name]) for name in job.get("speakers", {})}
        yield {"wav": job["wav"], "speaker": {"cosines": near, "vector": vector.tolist()}}


def test_the_reference_is_a_recording_of_five_to_ten_seconds(tmp_path: Path) -> None:
    readers = readers_in(recordings(tmp_path))
    assert {reference_of(paths).name for paths in readers.values()} == {"2.wav"}


def test_a_clone_with_the_voice_of_another_reader_is_not_nearest(tmp_path: Path) -> None:
    readers = readers_in(recordings(tmp_path / "readers"))
    voice_of = {"anna": "anna", "bert": "anna", "cleo": "cleo"}  # the clone of bert sounds like anna

    def speak(name: str, reference: Path) -> list[Path]:
        assert reference.parent.name == name
        voice = voice_of[name]
        return [record(tmp_path / name / voice / f"{number}.wav", voice, 1.0) for number in range(2)]

    report = compare_clones(speak, readers, judge)
    assert report.nearest == 2
    assert report.semitones == pytest.approx({"anna": 0.0, "bert": 12.0, "cleo": 0.0}, abs=0.1)
    assert report.pitch_semitones == pytest.approx(4.0, abs=0.1)
    assert report.cosine == pytest.approx((1 + 0.6 + 1) / 3)


def test_a_perfect_voice_encoder_has_no_equal_error(tmp_path: Path) -> None:
    readers = readers_in(recordings(tmp_path))
    report = compare_encoder(lambda path: SPEAKERS[path.parent.name].astype(np.float32), readers, judge)
    assert report.cosine == pytest.approx(1.0)
    assert report.equal_error_percent == 0.0


def test_an_encoder_without_speakers_is_wrong_half_of_the_time() -> None:
    rng = np.random.default_rng(0)
    vectors = {str(i): rng.normal(size=8).astype(np.float32) for i in range(60)}
    owner = {name: str(int(name) % 6) for name in vectors}
    assert equal_error_rate(vectors, owner) == pytest.approx(0.5, abs=0.1)


def test_one_reader_is_too_few(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    with pytest.raises(ConfigError, match="too few readers"):
        readers_in(tmp_path)
