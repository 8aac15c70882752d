"""The model card's table: what counts as reached, and where its numbers come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightingale import TTS
from nightingale.bench.quality import measure
from nightingale.bench.wren import Row, Speed, render, rows, table, texts
from nightingale.engine.load import Model


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
    assert Row(what="x", reached=reached, must=must, aim=aim, higher=higher).verdict == verdict


def test_sentences_are_rendered_to_numbered_files_and_end_in_the_table(
    noise_model: Model, tmp_path: Path
) -> None:
    with TTS.over(noise_model) as tts:
        clips, speed = render(tts, ["Hello.", "Good day."], tmp_path)
    assert [clip.wav.name for clip in clips] == ["000.wav", "001.wav"]
    assert speed.real_time_factor > 0
    assert speed.first_audio_ms > 0
    report = measure(clips)
    shown = table(rows(report, [report], report, Speed(real_time_factor=0.2, first_audio_ms=90), 3.0))
    assert "real-time factor                       0.200    0.35    0.12  must" in shown
    assert "WER %, default voice, tiny" in shown
    assert "not measured" in shown


def test_the_sentences_are_there() -> None:
    assert (len(texts("wren_200")), len(texts("wren_500"))) == (200, 500)
