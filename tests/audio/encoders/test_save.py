"""Saved recordings: readable by other programs, exact where the format is, never half-written."""

from __future__ import annotations

import errno
import io
import os
import stat
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from decoding_files import read_back

from nightingale import files
from nightingale.audio.encoders import recording as recording_module
from nightingale.audio.encoders.recording import (
    FILE_FORMATS,
    LOSSY,
    check_output,
    check_suffix,
    recording,
    save,
)
from nightingale.audio.samples import wav_bytes
from nightingale.errors import ConfigError, OutputError
from nightingale.types import AudioChunk

RATE = 24_000
TONE = (0.5 * np.sin(np.arange(RATE // 2) * 2 * np.pi * 220 / RATE)).astype(np.float32)
CHUNK = AudioChunk(samples=TONE, sample_rate_hz=RATE)


def test_a_wav_is_read_by_the_standard_library_sample_for_sample() -> None:
    with wave.open(io.BytesIO(wav_bytes(TONE, RATE))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        assert file.readframes(file.getnframes()) == CHUNK.pcm16


def test_samples_beyond_full_scale_are_clipped_and_not_wrapped() -> None:
    loud = np.array([2.0, -2.0], dtype=np.float32)
    samples, _ = soundfile.read(io.BytesIO(wav_bytes(loud, RATE)), dtype="int16")
    assert samples.tolist() == [32767, -32767]


def test_a_wav_without_samples_is_valid() -> None:
    samples, _ = soundfile.read(io.BytesIO(wav_bytes(np.zeros(0, np.float32), RATE)))
    assert len(samples) == 0


@pytest.mark.parametrize("suffix", LOSSY)
def test_a_bit_rate_sets_the_size_of_a_file(suffix: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for bit_rate in (32_000, 96_000):
        with recording(tmp_path / f"{bit_rate}{suffix}", RATE, bit_rate) as recorder:
            for _ in range(40):
                recorder.feed(rng.normal(0, 0.1, RATE // 4).astype(np.float32))
        whole = (tmp_path / f"{bit_rate}{suffix}").stat().st_size
        assert 8 * whole / 10 == pytest.approx(bit_rate, rel=0.3)


@pytest.mark.parametrize(("name", "bit_rate"), [("a.wav", 64_000), ("a.mp3", 64), ("a.opus", 10**7)])
def test_an_impossible_bit_rate_is_refused(name: str, bit_rate: int) -> None:
    with pytest.raises(ConfigError, match="no such bit rate"):
        check_output(Path(name), bit_rate)


def test_a_format_of_ffmpeg_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "find_spec", lambda _: None)
    for name, bit_rate in (("a.m4a", None), ("a.mp3", 64_000)):
        with pytest.raises(ConfigError, match="pip install av"):
            check_output(Path(name), bit_rate)
    check_output(Path("a.opus"))


@pytest.mark.parametrize("suffix", FILE_FORMATS)
def test_every_format_decodes_to_the_same_audio(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"tone{suffix}"
    save(path, CHUNK)
    samples, rate = read_back(path)
    assert rate == RATE
    assert abs(len(samples) - len(TONE)) <= 2400, "a codec may pad"
    loudness = float(np.sqrt(np.mean(samples**2)))
    assert loudness == pytest.approx(float(np.sqrt(np.mean(TONE**2))), rel=0.1)


def test_an_unknown_suffix_is_refused_before_any_work() -> None:
    with pytest.raises(ConfigError, match=r"\.wav, \.flac"):
        check_suffix(Path("hello.xyz"))


@pytest.mark.parametrize("bad", [np.array([0.0, np.nan], np.float32), np.zeros((2, 2), np.float32)])
def test_bad_samples_are_refused(bad: Any, tmp_path: Path) -> None:
    for suffix in FILE_FORMATS:
        with pytest.raises(OutputError):
            save(tmp_path / f"x{suffix}", AudioChunk(samples=bad, sample_rate_hz=RATE))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        save(path, CHUNK)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.wav"]


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "a.wav", CHUNK)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_and_a_folder_as_target_are_output_errors(tmp_path: Path) -> None:
    (tmp_path / "folder.wav").mkdir()
    for path in (tmp_path / "none" / "a.wav", tmp_path / "folder.wav"):
        with pytest.raises(OutputError):
            save(path, CHUNK)
    assert [p.name for p in tmp_path.iterdir()] == ["folder.wav"]


def test_a_device_is_written_into_and_not_replaced() -> None:
    files.write_whole(Path(os.devnull), b"gone")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_symbolic_link_is_kept(tmp_path: Path) -> None:
    (tmp_path / "real.wav").write_bytes(b"old")
    (tmp_path / "link.wav").symlink_to(tmp_path / "real.wav")
    save(tmp_path / "link.wav", CHUNK)
    assert (tmp_path / "link.wav").is_symlink()
    assert (tmp_path / "real.wav").read_bytes() == wav_bytes(TONE, RATE)
