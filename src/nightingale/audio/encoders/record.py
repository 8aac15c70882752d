"""A recording written while it is still being spoken, so that a book takes no more memory than a sentence."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from nightingale.audio.encoders import encoder_for
from nightingale.audio.encoders.stream import Wav
from nightingale.audio.encoders.wav import check_samples
from nightingale.errors import OutputError
from nightingale.files import whole_file
from nightingale.types import Samples

SNDFILE: Final = {
    ".flac": ("FLAC", "PCM_16"),
    ".ogg": ("OGG", "VORBIS"),
    ".mp3": ("MP3", "MPEG_LAYER_III"),
}
_LARGEST: Final = 0xFFFFFFFF
_RIFF_AT, _DATA_AT, _HEADER_BYTES = 4, 40, 44


class Recorder(Protocol):
    def feed(self, samples: Samples) -> None: ...

    def finish(self) -> None: ...


@contextmanager
def recording(path: Path, sample_rate_hz: int) -> Iterator[Recorder]:
    """A recorder of the format that the suffix names. The file is there at the end, whole, or not at all."""
    encoder_for(path)  # an unknown suffix is refused here
    with whole_file(path) as file:
        suffix = path.suffix.lower()
        recorder: Recorder
        if suffix == ".wav":
            recorder = WavRecorder(file, sample_rate_hz)
        else:
            recorder = SndfileRecorder(file, sample_rate_hz, *SNDFILE[suffix])
        yield recorder
        recorder.finish()


class WavRecorder:
    """16-bit WAV. Its length is written into the header at the end, if the file can go back there.

    In a pipe it cannot, and the header keeps saying that the length is not known; so it does beyond 4 GiB.
    """

    def __init__(self, file: BinaryIO, sample_rate_hz: int) -> None:
        self._file, self._wav = file, Wav(sample_rate_hz)
        self._start = file.tell() if _can_go_back(file) else None
        self._bytes = 0

    def feed(self, samples: Samples) -> None:
        check_samples(samples)
        self._write(self._wav.feed(samples))

    def finish(self) -> None:
        self._write(self._wav.finish())
        if self._start is not None and self._bytes <= _LARGEST:
            for at, size in ((_RIFF_AT, self._bytes - 8), (_DATA_AT, self._bytes - _HEADER_BYTES)):
                self._file.seek(self._start + at)
                self._file.write(struct.pack("<I", size))
            self._file.seek(self._start + self._bytes)
        self._file.flush()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()  # somebody may be listening at the other end of a pipe
        self._bytes += len(data)


class SndfileRecorder:
    """FLAC, Ogg Vorbis and MP3 through libsndfile."""

    def __init__(self, file: BinaryIO, sample_rate_hz: int, form: str, subtype: str) -> None:
        import soundfile

        with self._said_plainly():
            self._sound: Any = soundfile.SoundFile(
                file.fileno(), "w", sample_rate_hz, 1, subtype, format=form, closefd=False
            )

    def feed(self, samples: Samples) -> None:
        check_samples(samples)
        with self._said_plainly():
            self._sound.write(samples)

    def finish(self) -> None:
        with self._said_plainly():
            self._sound.close()

    @contextmanager
    def _said_plainly(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, AssertionError) as error:  # all that soundfile says of a disk that is full
            raise OutputError(
                "the recording could not be written",
                got=str(error) or "fewer samples were written than given",
                allowed="room on the disk, and libsndfile 1.1 or newer for MP3",
                fix="Make room, or write .wav or .flac instead.",
            ) from error


def _can_go_back(file: BinaryIO) -> bool:
    """Whether what was written can be written over: not in a pipe, nor where all is appended (`>> file`)."""
    try:
        import fcntl

        appends = bool(fcntl.fcntl(file.fileno(), fcntl.F_GETFL) & os.O_APPEND)
    except (ImportError, OSError):  # not this system's way, or no file of the system's at all
        appends = False
    return file.seekable() and not appends
