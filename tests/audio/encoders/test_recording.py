"""Recordings written chunk by chunk equal those written at once, in the memory of a chunk."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from decoding_files import read_back

from nightingale.audio.encoders.recording import FILE_FORMATS, WavRecorder, recording
from nightingale.audio.samples import wav_bytes
from nightingale.errors import ConfigError, OutputError

RATE = 24_000
TONE = (0.5 * np.sin(np.arange(RATE) * 2 * np.pi * 220 / RATE)).astype(np.float32)


def write(path: Path, *parts: Any) -> None:
    with recording(path, RATE) as recorder:
        for part in parts:
            recorder.feed(part)


def test_a_wav_in_parts_has_the_same_bytes_as_one_written_at_once(tmp_path: Path) -> None:
    write(tmp_path / "parts.wav", TONE[:1], TONE[1:7000], TONE[:0], TONE[7000:])
    assert (tmp_path / "parts.wav").read_bytes() == wav_bytes(TONE, RATE)
    write(tmp_path / "nothing.wav")
    assert (tmp_path / "nothing.wav").read_bytes() == wav_bytes(TONE[:0], RATE)


@pytest.mark.parametrize("suffix", [".opus", ".m4a", ".pcm", ".raw"])
def test_a_stream_of_packets_in_parts_decodes_as_the_whole(suffix: str, tmp_path: Path) -> None:
    """AAC pads, and Opus changes the last samples, so that the two recordings are compared with each other."""
    write(tmp_path / f"whole{suffix}", TONE)
    write(tmp_path / f"parts{suffix}", *np.array_split(TONE, 13))
    whole, parts = (read_back(tmp_path / f"{name}{suffix}")[0] for name in ("whole", "parts"))
    assert len(whole) == len(parts)
    assert np.abs(whole - parts).max() < 0.01


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".ogg", ".mp3"])
def test_every_format_in_parts_decodes_as_the_whole(suffix: str, tmp_path: Path) -> None:
    write(tmp_path / f"whole{suffix}", TONE)
    write(tmp_path / f"parts{suffix}", *np.array_split(TONE, 13))
    whole, parts = (soundfile.read(tmp_path / f"{name}{suffix}")[0] for name in ("whole", "parts"))
    assert len(whole) == len(parts) == len(TONE)
    # Vorbis encodes the very beginning differently, and no worse; the other formats are equal.
    lost, lost_in_parts = (float(np.abs(samples - TONE).max()) for samples in (whole, parts))
    assert lost_in_parts <= 1.1 * lost < 0.02


def test_a_wav_in_a_pipe_has_an_unknown_length() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as file:
        recorder = WavRecorder(file, RATE)
        recorder.feed(TONE[:1000])
        at_once = os.read(reader, 1 << 16)
        recorder.finish()
    want = wav_bytes(TONE[:1000], RATE)
    assert len(at_once) == len(want), "samples were held back"
    assert (at_once[4:8], at_once[40:44]) == (b"\xff" * 4, b"\xff" * 4)
    assert at_once[44:] == want[44:]
    assert os.read(reader, 10) == b""
    os.close(reader)


@pytest.mark.parametrize("mode", ["ab", "r+b"])
def test_what_was_in_the_file_before_is_kept(mode: str, tmp_path: Path) -> None:
    """Appending and writing after other data: only the recording's own header is rewritten."""
    path = tmp_path / "log"
    path.write_bytes(b"before")
    with path.open(mode) as file:
        file.seek(0, os.SEEK_END)
        recorder = WavRecorder(file, RATE)
        recorder.feed(TONE)
        recorder.finish()
    held, want = path.read_bytes(), wav_bytes(TONE, RATE)
    assert (held[:6], len(held)) == (b"before", 6 + len(want))
    assert held[50:] == want[44:]
    assert (held[6:] == want) == (mode == "r+b")


def test_a_long_recording_takes_the_memory_of_a_chunk(tmp_path: Path) -> None:
    with recording(tmp_path / "book.wav", RATE) as recorder:
        recorder.feed(TONE)
        tracemalloc.start()
        for _ in range(600):
            recorder.feed(TONE)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2_000_000
    assert (tmp_path / "book.wav").stat().st_size == 44 + 601 * 2 * RATE


def test_bad_samples_and_suffixes_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    for suffix in FILE_FORMATS:
        with pytest.raises(OutputError, match="not finite"):
            write(tmp_path / f"x{suffix}", TONE, np.array([np.nan], np.float32))
    with pytest.raises(ConfigError, match="no encoder"):
        write(tmp_path / "x.xyz", TONE)
    assert not list(tmp_path.iterdir())


FILL_DISK = """
import resource, sys
import numpy as np
from pathlib import Path
from nightingale.audio.encoders.recording import recording
from nightingale.errors import OutputError
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
rng = np.random.default_rng(0)
try:
    with recording(Path(sys.argv[1]), 24_000) as recorder:
        for _ in range(60):
            recorder.feed((0.3 * rng.standard_normal(24_000)).astype(np.float32))
except OutputError as error:
    print(error.exit_code)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize("suffix", FILE_FORMATS)
def test_a_disk_that_fills_up_raises_an_output_error(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"book{suffix}"
    ran = subprocess.run(
        [sys.executable, "-c", FILL_DISK, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.strip() == str(OutputError.exit_code), ran.stderr
    assert "Traceback" not in ran.stderr
    assert not list(tmp_path.iterdir())
