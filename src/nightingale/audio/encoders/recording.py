"""Recordings in files: the table of file formats, `save`, and recorders that write chunk by chunk.

A recorder writes audio while it is synthesized, so that a book takes no more memory than a sentence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from nightingale.audio.encoders.streaming import WavEncoder
from nightingale.audio.samples import HEADER_BYTES, UNKNOWN_LENGTH, Samples, check_samples, wav_header
from nightingale.errors import ConfigError, OutputError
from nightingale.files import whole_file

FILE_FORMATS: Final[Mapping[str, tuple[str, str]]] = {
    ".wav": ("WAV", "PCM_16"),
    ".flac": ("FLAC", "PCM_16"),
    ".ogg": ("OGG", "VORBIS"),
    ".mp3": ("MP3", "MPEG_LAYER_III"),
}
"""Suffix -> libsndfile's names of the format and its subtype. WAV is written without libsndfile."""


class HasSamples(Protocol):
    """An `AudioChunk` or `Audio`."""

    @property
    def samples(self) -> Samples: ...

    @property
    def sample_rate_hz(self) -> int: ...


def check_suffix(path: Path) -> str:
    """Return the path's suffix in lower case, or raise `ConfigError` if no format has it."""
    suffix = path.suffix.lower()
    if suffix not in FILE_FORMATS:
        raise ConfigError(
            "no encoder for this kind of file",
            got=repr(path.name),
            allowed=", ".join(FILE_FORMATS),
            fix="End the output path with one of these.",
        )
    return suffix


def save(path: Path | str, audio: HasSamples) -> None:
    """Write audio in the format that the path's suffix names.

    The file appears when it is complete. On any failure, a file that was there before stays unchanged.
    """
    with recording(Path(path), audio.sample_rate_hz) as recorder:
        recorder.feed(audio.samples)


@contextmanager
def recording(path: Path, sample_rate_hz: int) -> Iterator[Recorder]:
    """Yield a recorder for the format that the suffix names. The file appears when it is complete."""
    suffix = check_suffix(path)
    with whole_file(path) as file:
        recorder: Recorder
        if suffix == ".wav":
            recorder = WavRecorder(file, sample_rate_hz)
        else:
            recorder = SndfileRecorder(file, sample_rate_hz, *FILE_FORMATS[suffix])
        yield recorder
        recorder.finish()


class WavRecorder:
    """Writes 16-bit WAV and, where the file can seek, puts the length into the header at the end.

    In a pipe, and beyond 4 GiB, the header keeps saying that the length is unknown.
    """

    def __init__(self, file: BinaryIO, sample_rate_hz: int) -> None:
        self._file, self._rate_hz, self._encoder = file, sample_rate_hz, WavEncoder(sample_rate_hz)
        self._start = file.tell() if _can_rewrite(file) else None
        self._bytes = 0

    def feed(self, samples: Samples) -> None:
        check_samples(samples)
        self._write(self._encoder.feed(samples))

    def finish(self) -> None:
        self._write(self._encoder.finish())
        if self._start is not None and self._bytes <= UNKNOWN_LENGTH:
            self._file.seek(self._start)
            self._file.write(wav_header(self._rate_hz, self._bytes - HEADER_BYTES))
            self._file.seek(self._start + self._bytes)
        self._file.flush()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()  # a player may read the other end of a pipe
        self._bytes += len(data)


class SndfileRecorder:
    """Writes FLAC, Ogg Vorbis and MP3 through libsndfile."""

    def __init__(self, file: BinaryIO, sample_rate_hz: int, form: str, subtype: str) -> None:
        import soundfile

        with self._output_errors():
            self._sound: Any = soundfile.SoundFile(
                file.fileno(), "w", sample_rate_hz, 1, subtype, format=form, closefd=False
            )

    def feed(self, samples: Samples) -> None:
        check_samples(samples)
        with self._output_errors():
            self._sound.write(samples)

    def finish(self) -> None:
        with self._output_errors():
            self._sound.close()

    @contextmanager
    def _output_errors(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, AssertionError) as error:  # what soundfile raises when a disk is full
            raise OutputError(
                "the recording could not be written",
                got=str(error) or "fewer samples were written than given",
                allowed="free space on the disk, and libsndfile 1.1 or newer for MP3",
                fix="Free some space, or write .wav or .flac instead.",
            ) from error


Recorder = WavRecorder | SndfileRecorder


def _can_rewrite(file: BinaryIO) -> bool:
    """Return whether written bytes can be replaced: not in a pipe, nor in a file opened to append."""
    try:
        import fcntl

        appends = bool(fcntl.fcntl(file.fileno(), fcntl.F_GETFL) & os.O_APPEND)
    except (ImportError, OSError):  # Windows, or an object without a file descriptor
        appends = False
    return file.seekable() and not appends
