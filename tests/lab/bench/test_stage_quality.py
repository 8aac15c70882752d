"""Scores by folder and by stage, with a judge that knows the answers, and where the clips of a voice come from."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightingale.audio.samples import wav_bytes
from nightingale.errors import ConfigError
from nightingale_lab.bench import stage_quality
from nightingale_lab.bench.judges.score_folders import recordings, report
from nightingale_lab.bench.quality import spread

LOST = {"recording": 0.0, "vocoder": 0.1, "flow": 0.2, "spoken": 0.5}


def judge(jobs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterable[dict[str, Any]]:
    """Score the tenth clip of a folder with 3, the others with 4, less what the stage has lost."""
    assert list(names) == ["distillmos"]
    for job in jobs:
        wav = Path(job["wav"])
        mos = (3.0 if wav.stem == "009" else 4.0) - LOST[wav.parent.name]
        yield {"wav": job["wav"], "distillmos": {"mos": mos}}


def test_a_voice_has_the_mean_and_the_lowest_tenth_of_each_stage(tmp_path: Path) -> None:
    for voice, count in (("heart", 10), ("bella", 3)):
        for stage in stage_quality.STAGES:
            (tmp_path / voice / stage).mkdir(parents=True)
            for number in range(count):
                (tmp_path / voice / stage / f"{number:03d}.wav").touch()
    scores = stage_quality.scores_of(tmp_path, ["heart", "bella"], judge)
    assert scores["heart"]["recording"] == pytest.approx({"clips": 10, "mean": 3.9, "p10": 3.9})
    assert scores["bella"]["spoken"] == pytest.approx({"clips": 3, "mean": 3.5, "p10": 3.5})
    head, rows = stage_quality.table(scores)
    assert head[:6] == ["voice", "clips", "recording", "lowest tenth", "vocoder", "lowest tenth"]
    assert [row[:2] for row in rows] == [["heart", 10], ["bella", 3]]
    assert {len(head)} == {len(row) for row in rows}
    assert rows[1][2:] == pytest.approx([4.0, 4.0, 3.9, 3.9, 3.8, 3.8, 3.5, 3.5])


def test_the_lowest_tenth_is_the_tenth_percentile() -> None:
    assert spread(range(11)) == {"mean": 5.0, "p10": 1.0}
    assert spread([]) == {}


def test_an_error_stands_in_place_of_a_score_and_does_not_count(tmp_path: Path) -> None:
    for name in ("b.wav", "a.opus", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in recordings(tmp_path)] == ["a.opus", "b.wav"]
    answers = [
        {"wav": str(tmp_path / "b.wav"), "distillmos": {"mos": 4.0}},
        {"wav": str(tmp_path / "a.opus"), "error": "ValueError: too short"},
    ]
    found = report([tmp_path], answers)[str(tmp_path)]
    assert (found["clips"], found["mean"], found["p10"]) == (2, 4.0, 4.0)
    assert found["files"] == {"a.opus": "ValueError: too short", "b.wav": 4.0}


def corpus(folder: Path) -> Path:
    rows = [
        ["0.wav", "en", "af_bella", 1.0, "Zero."],
        ["1.wav", "pt", "af_bella", 1.0, "Um."],
        ["2.wav", "en", "am_puck", 1.0, "Two."],
        ["3.wav", "en", "af_bella", 1.0, "Three."],
        ["4.wav", "en", "af_bella", 1.0, "Four."],
    ]
    (folder / "clips.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for part, names in enumerate((["3.wav", "2.wav"], ["0.wav", "1.wav", "4.wav"])):
        with tarfile.open(folder / f"{part}.tar", "w") as archive:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size = len(name)
                archive.addfile(member, io.BytesIO(name.encode()))
    return folder


def test_the_first_english_clips_of_a_voice_are_taken_from_a_corpus(tmp_path: Path) -> None:
    found = stage_quality.recordings_of(corpus(tmp_path), "bella", 2)
    assert [(clip.data, clip.text) for clip in found] == [(b"0.wav", "Zero."), (b"3.wav", "Three.")]


def test_a_folder_of_one_voice_has_a_text_for_each_recording(tmp_path: Path) -> None:
    samples = np.linspace(-0.5, 0.5, 2400, dtype=np.float32)
    (tmp_path / "a.wav").write_bytes(wav_bytes(samples, 12_000))
    (tmp_path / "texts.txt").write_text("One.\n")
    (clip,) = stage_quality.recordings_of(tmp_path, "heart", 20)
    assert clip.text == "One."
    assert len(stage_quality.recorded(clip)) == 4800


@pytest.mark.parametrize("options", [["--voices", "nobody"], ["--voices", "heart,bella"]])
def test_voices_that_cannot_be_measured_are_refused(options: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        stage_quality.parse([str(tmp_path), *options])
