"""The table of the model card: verdicts, and where its numbers come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nightingale import TTS
from nightingale.audio.samples import wav_bytes
from nightingale.engine.load import Model
from nightingale_lab.bench.endings import expected_seconds
from nightingale_lab.bench.quality import Clip, ClipQuality, Quality, measure, measure_clip
from nightingale_lab.bench.sentences import sentences
from nightingale_lab.bench.wren import Goal, Speed, goals, judged_again, render, table


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
    shown = table(goals(report, [report], report, Speed(real_time_factor=0.2, first_audio_ms=90), 3.0))
    assert "real-time factor                       0.200    0.35    0.12  must" in shown
    assert "WER %, default voice, tiny" in shown
    assert "not measured" in shown


def test_the_sentences_are_there() -> None:
    assert (len(sentences("wren_200")), len(sentences("wren_500"))) == (200, 500)


def test_defective_clips_are_judged_again_by_two_recognizers(tmp_path: Path) -> None:
    text, words = "We went up the hill.", {"tiny": "We went up the", "base": "We went up the hill."}
    clips = [tone(tmp_path / f"{name}.wav", text) for name in ("good", "misheard", "cut")]

    def judged(clip: Clip, **transcripts: str) -> ClipQuality:
        return measure_clip(clip, {name: {"transcript": text} for name, text in transcripts.items()})

    first = Quality(
        clips=(judged(clips[0], tiny=text), *(judged(clip, tiny=words["tiny"]) for clip in clips[1:]))
    )
    asked: list[list[Clip]] = []

    def ask(doubted: list[Clip]) -> Quality:
        asked.append(doubted)
        return Quality(
            clips=(judged(doubted[0], **words), judged(doubted[1], tiny=words["tiny"], base=words["tiny"]))
        )

    found = judged_again(first, ask)
    assert asked == [clips[1:]]
    assert [clip.report()["wav"] for clip in found.defective] == ["cut.wav"]
    assert found.defective[0].defects == ("cut-off",)
    assert len(found.clips) == 3


def tone(path: Path, text: str) -> Clip:
    """Write a tone as long as its text that fades out."""
    rate_hz = 16_000
    at = np.arange(int(rate_hz * expected_seconds(text))) / rate_hz
    sound = 0.3 * np.sin(2 * np.pi * 200 * at) * np.minimum(1, (at[-1] - at) / 0.3)
    path.write_bytes(wav_bytes(sound.astype(np.float32), rate_hz))
    return Clip(wav=path, text=text)
