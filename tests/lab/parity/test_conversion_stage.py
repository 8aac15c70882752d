"""Our side of the conversion stage of `make parity`, at tiny sizes. The other side needs upstream's packages."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import soundfile
import torch
from tiny_torch import load_tiny, s3gen_of, t3_of

from nightingale.backends.torch.weights import load_voice_encoders
from nightingale_lab.parity.stages import conversion_stage
from nightingale_lab.parity.stages.conversion_stage import Converted
from nightingale_lab.parity.table import Rows
from nightingale_lab.random_models import Networks


def test_a_recording_becomes_ids_and_faded_samples(tmp_path: Path) -> None:
    path = conversion_stage.write_recording(tmp_path)
    assert soundfile.info(path).duration == pytest.approx(conversion_stage.SECONDS, abs=0.001)
    model = load_tiny()
    (flow, hift), voice = s3gen_of(model), model.default_voice
    assert voice is not None
    networks = Networks(t3=t3_of(model), flow=flow, vocoder=hift)
    converted = conversion_stage.run_ours(networks, load_voice_encoders(model.source), voice, path)
    tokens = math.ceil(conversion_stage.SECONDS * 25)  # 25 a second, the last one begun
    assert len(converted.ids) == tokens
    assert converted.samples.shape == (1, 960 * tokens)
    assert not converted.samples[:, :480].any()
    assert converted.samples[:, 960:].abs().max() > 0


def test_differences_in_ids_and_samples_fail() -> None:
    ids = torch.arange(60)
    same, other = Converted(ids, torch.zeros(1, 9)), Converted(ids.flip(0), torch.full((1, 9), 0.01))
    for theirs, expected in ((same, [True, False]), (other, [False, False])):
        rows = Rows("x")
        conversion_stage.compare(rows, Converted(ids, torch.full((1, 9), 0.005)), theirs)
        assert [row.passed for row in rows.rows] == expected
