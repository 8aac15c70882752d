"""The quality report of good and of damaged clips, and of judges that were not asked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from nightingale.errors import ConfigError
from nightingale_lab.bench.endings import expected_seconds
from nightingale_lab.bench.quality import Clip, Quality, clips_in, measure, measure_clip
from nightingale_lab.bench.quality_table import quality_table

RATE_HZ = 24_000
TEXT = "The bees make honey from the flowers in our garden."


def write_voice(path: Path, seconds: float) -> Path:
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    fade = np.clip((seconds - t) / 0.2, 0.0, 1.0) ** 2
    voice = 0.1 * fade * sum(np.sin(2 * np.pi * 200.0 * k * t) / k for k in range(1, 8))
    soundfile.write(path, np.concatenate([voice, np.zeros(2400)]), RATE_HZ)
    return path


def scores(transcript: str, *, ovrl: float = 3.3, cosine: float = 0.9) -> dict[str, object]:
    mos = {"ovrl": ovrl, "sig": 3.5, "bak": 4.0, "p808": 4.0}
    return {
        "tiny": {"transcript": transcript},
        "dnsmos": mos,
        "distillmos": {"mos": ovrl + 1},
        "speaker": {"cosine": cosine},
    }


@pytest.fixture
def report(tmp_path: Path) -> Quality:
    good = Clip(wav=write_voice(tmp_path / "a.wav", expected_seconds(TEXT)), text=TEXT)
    cut = Clip(wav=write_voice(tmp_path / "b.wav", 0.4 * expected_seconds(TEXT)), text=TEXT)
    told = measure_clip(good, scores(TEXT)), measure_clip(cut, scores("The bees make honey", ovrl=3.1))
    return Quality(clips=told)


def test_rates_are_taken_over_the_whole_set(report: Quality) -> None:
    assert report.wer("tiny") == pytest.approx(6 / 20)
    assert report.wer("base") is None
    assert report.mos() == pytest.approx(3.2)
    assert report.distill_mos == pytest.approx({"mean": 4.2, "p10": 4.12})
    assert report.cosine == pytest.approx(0.9)


def test_the_damaged_clip_is_named_and_the_good_one_is_not(report: Quality) -> None:
    assert [clip.clip.wav.name for clip in report.defective] == ["b.wav"]
    assert [clip.clip.wav.name for clip in report.worst()] == ["b.wav"]
    assert report.summary()["defects"] == {"cut-off": 1}


def test_the_summary_and_the_rows_are_json(report: Quality) -> None:
    assert json.loads(json.dumps(report.summary()))["clips"] == 2
    assert json.loads(json.dumps(report.clips[1].row()))["defects"] == ["cut-off"]


def test_the_table_says_not_measured_rather_than_a_number(tmp_path: Path) -> None:
    write_voice(tmp_path / "a.wav", expected_seconds(TEXT))
    (tmp_path / "texts.txt").write_text(TEXT + "\n")
    report = measure(clips_in(tmp_path, tmp_path / "texts.txt"))
    cells = [cell for column in quality_table(report, title="t").columns for cell in column.cells]
    assert cells.count("not measured") == 7
    assert "0 of 1" in cells


def test_a_folder_whose_texts_do_not_match_is_refused(tmp_path: Path) -> None:
    write_voice(tmp_path / "a.wav", 1.0)
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    with pytest.raises(ConfigError, match="1 wav files"):
        clips_in(tmp_path, tmp_path / "texts.txt")
