"""The table of the model card: verdicts, and where its numbers come from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from nightingale import TTS
from nightingale.audio.samples import wav_bytes
from nightingale.engine.load import Model
from nightingale_lab.bench.endings import expected_seconds
from nightingale_lab.bench.quality import Clip, Quality, measure, measure_clip
from nightingale_lab.bench.sentences import sentences
from nightingale_lab.bench.wren import render, rises
from nightingale_lab.bench.wren_goals import (
    Goal,
    Speed,
    TableResults,
    distill_mos_rows,
    goals,
    share_with_errors,
    skipped_per_10000,
    table,
)


@pytest.mark.parametrize(
    ("reached", "higher", "verdict"),
    [
        (1.5, False, "aim"),
        (3.0, False, "must"),
        (5.0, False, "missed"),
        (5.0, True, "aim"),
        (None, True, "not measured"),
    ],
)
def test_a_row_says_which_bound_was_reached(reached: float | None, higher: bool, verdict: str) -> None:
    must, aim = (3.0, 4.0) if higher else (4.0, 2.0)
    assert Goal(what="x", reached=reached, must=must, aim=aim, higher=higher).verdict == verdict


def test_sentences_are_rendered_to_numbered_files_and_end_in_the_table(
    noise_model: Model, tmp_path: Path
) -> None:
    with TTS.over(noise_model) as tts:
        clips, speed = render(tts, ["Hello.", "Good day."], tmp_path)
    assert [clip.wav.name for clip in clips] == ["000.wav", "001.wav"]
    assert speed.real_time_factor > 0
    assert speed.first_audio_ms > 0
    report = measure(clips)
    speed = Speed(real_time_factor=0.2, first_audio_ms=90)
    found = TableResults(
        default=report, voices={"a": report}, varied=report, rises=[5.0, 3.0, 1.0], speed=speed
    )
    shown = table(goals(found))
    assert "real-time factor                             0.200    0.35    0.12  must" in shown
    assert "question minus statement, semitones           3.00     2.5       4  must" in shown
    assert "questions above +1.5, %                         67      80      95  missed" in shown
    assert "WER %, default voice, tiny" in shown
    assert "not measured" in shown


def test_the_sentences_are_there() -> None:
    counts = {"wren_200": 200, "wren_500": 500, "wren_hard": 200, "wren_questions": 40}
    assert {name: len(set(sentences(name))) for name in counts} == counts


def test_a_word_counts_as_skipped_if_both_recognizers_miss_it(tmp_path: Path) -> None:
    text, without = "We went up the hill.", "We went the hill."
    transcripts = [
        {"tiny": text, "base": text},
        {"tiny": without, "base": text},
        {"tiny": without, "base": without},
    ]
    clips = tuple(
        measure_clip(
            tone(tmp_path / f"{number}.wav", text),
            {name: {"transcript": transcript} for name, transcript in each.items()},
        )
        for number, each in enumerate(transcripts)
    )
    report = Quality(clips=clips)
    assert skipped_per_10000(report) == pytest.approx(10_000 / 15)
    assert share_with_errors(report, "tiny") == pytest.approx(200 / 3)
    assert share_with_errors(report, "base") == pytest.approx(100 / 3)
    assert skipped_per_10000(Quality(clips=())) is share_with_errors(report, "moonshine") is None


def test_the_rise_of_a_question_is_that_of_its_final_pitch(tmp_path: Path) -> None:
    class Speaker:
        sample_rate_hz = 24_000

        def say(self, text: str, *, seed: int) -> SimpleNamespace:
            del seed
            at = np.arange(24_000) / 24_000
            end_hz = 240.0 if text.endswith("?") else 120.0
            phase = 2 * np.pi * np.cumsum(np.where(at < 0.7, 120.0, end_hz)) / 24_000
            sound = np.sum([np.sin(k * phase) / k for k in range(1, 10)], axis=0)
            return SimpleNamespace(samples=np.float32(0.1) * sound.astype(np.float32) * (text[0] != "S"))

    found = rises(cast(TTS, Speaker()), ["You know", "Silent"], tmp_path)
    assert found == [pytest.approx(12.0, abs=0.3)]
    assert len(list(tmp_path.glob("*.wav"))) == 4


def tone(path: Path, text: str) -> Clip:
    """Write a tone as long as its text that fades out."""
    rate_hz = 16_000
    at = np.arange(int(rate_hz * expected_seconds(text))) / rate_hz
    sound = 0.3 * np.sin(2 * np.pi * 200 * at) * np.minimum(1, (at[-1] - at) / 0.3)
    path.write_bytes(wav_bytes(sound.astype(np.float32), rate_hz))
    return Clip(wav=path, text=text)


def rated(folder: Path, *scores: float) -> Quality:
    clips = [tone(folder / "rated.wav", "One.")] * len(scores)
    return Quality(
        clips=tuple(
            measure_clip(clip, {"distillmos": {"mos": mos}}) for clip, mos in zip(clips, scores, strict=True)
        )
    )


def test_a_voice_is_compared_with_its_teacher_on_the_same_texts(tmp_path: Path) -> None:
    found = TableResults(
        default=rated(tmp_path, 4.0, 4.4),
        teacher_default=rated(tmp_path, 4.3, 4.3),
        voices={"a": rated(tmp_path, 4.0), "b": rated(tmp_path, 3.5), "c": rated(tmp_path, 1.0)},
        teacher_voices={"a": rated(tmp_path, 3.9), "b": rated(tmp_path, 4.1)},
    )
    reached = {goal.what: goal.reached for goal in goals(found)}
    assert reached["Distill-MOS, default voice"] == pytest.approx(4.2)
    assert reached["the same minus its teacher's"] == pytest.approx(-0.1)
    assert reached["Distill-MOS, worst voice minus teacher's"] == pytest.approx(-0.6)
    assert reached["the same, mean over voices"] == pytest.approx(-0.25)
    rows = {row[0]: row[1:] for row in distill_mos_rows(found)}
    assert rows["default sentences"] == pytest.approx((4.2, 4.04, 4.3, 4.3, -0.1))
    assert rows["c"] == (1.0, 1.0, None, None, None)
