"""Training data of the vocoder while the corpus grows, and reference recordings."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
from lab.train.tiny_training import ToneTeacher, tiny_assets

from nightingale_lab.train import references
from nightingale_lab.train.asset_files import Assets
from nightingale_lab.train.bank import AudioBank
from nightingale_lab.train.vocoder_data import VocoderDataSource


def part(folder: Path, frames: int, level: int) -> None:
    audio, f0 = np.full(frames * 480, level, np.int16), np.full(frames, 100.0)
    AudioBank.join([(audio, f0)]).save(folder)
    (folder / "ready").touch()


def test_the_first_part_then_all_parts_then_the_mels_of_the_flow_are_used(tmp_path: Path) -> None:
    part(tmp_path / "part00", 10, 1)
    source = VocoderDataSource(tmp_path)
    assert len(source.current().bank.f0_hz) == 10
    part(tmp_path / "part01", 20, 2)
    assert source.newer() is None  # more may come; reloading costs
    (tmp_path / "done").touch()
    whole = source.newer()
    assert whole is not None
    assert (len(whole.bank.f0_hz), whole.bank.clips, whole.mels) == (30, 2, None)
    assert source.newer() is None
    np.save(tmp_path / "part00" / "mels.npy", np.zeros((10, 80), np.float16))
    last = source.newer()
    assert last is not None
    assert last.mels is not None
    assert (len(last.bank.f0_hz), last.mels.shape) == (10, (10, 80))
    assert source.newer() is None


def test_the_best_data_is_used_from_the_start(tmp_path: Path) -> None:
    part(tmp_path / "part00", 10, 1)
    (tmp_path / "done").touch()
    np.save(tmp_path / "part00" / "mels.npy", np.zeros((10, 80), np.float16))
    assert VocoderDataSource(tmp_path).current().mels is not None


def test_every_named_voice_gets_recordings_under_wrens_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Speaker(ToneTeacher):
        def speak_many(self, lines: list[object]) -> list[object]:
            spoken = self.render_aligned(lines)  # type: ignore[arg-type]
            return [row[: int(n)] for row, n in zip(spoken.samples, spoken.counts, strict=True)]

    monkeypatch.setattr(references, "make_teacher", lambda *_: Speaker())
    monkeypatch.setattr(references, "WANTED_PHONEMES", range(4, 20))
    assets = Assets(tiny_assets(tmp_path / "assets", lines=120))
    references.write_references(assets, tmp_path / "out", each=2, device="cpu")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert len(names) == 20
    assert {"heart_0.wav", "heart_1.wav", "george_0.wav"} <= set(names)
    with wave.open(str(tmp_path / "out" / "heart_0.wav")) as file:
        assert (file.getframerate(), file.getnchannels()) == (24_000, 1)
        assert file.getnframes() > 12_000
